"""`python -m tune`: the command `tune-whisper`."""

import sys

from tune.cli import main

sys.exit(main())
