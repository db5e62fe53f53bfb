"""The process in which whisper.cpp runs: `python -m trainer.conversion.ggml_process MODEL CLIPS DECODING`.

Prints the transcript of each clip as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys

from trainer.conversion.decoding import Decoding
from trainer.data.audio import SAMPLE_RATE


def main() -> None:
    """Read the arguments and transcribe.

    Without flash attention, which whisper.cpp (1.8.5) uses by default: it rounds the positions of a window up to a
    multiple of 256 and attends to the empty ones too, 36 beside Whisper's own 1,500 (ggml-org/whisper.cpp#3941).
    Logits of a random model of whisper-tiny's shape are 0.0025 (root mean square) from transformers' without it,
    0.46 with it.
    """
    import numpy as np
    from pywhispercpp.model import Model

    decoding = Decoding(**json.loads(sys.argv[3]))
    # Half the cores: its threads spin while they wait, and crawl where others want the cores too.
    threads = max(1, (os.cpu_count() or 1) // 2)
    model = Model(sys.argv[1], context_params={"flash_attn": False}, n_threads=threads)
    with np.load(sys.argv[2]) as clips:
        for name in clips.files:
            samples = clips[name]
            segments = model.transcribe(
                # It hears nothing in less than 0.1 s; silence behind a clip is what it would add itself.
                np.pad(samples, (0, max(0, SAMPLE_RATE - len(samples)))),
                language=decoding.language or "en",
                translate=decoding.task == "translate",
                no_timestamps=True,
                single_segment=True,
                no_context=True,
                temperature_inc=0.0,
                # The token at this index is the last one.
                max_tokens=decoding.max_new_tokens - 1,
                suppress_nst=decoding.suppresses_symbols,
                no_speech_thold=1.0,
                print_progress=False,
            )
            text = " ".join(segment.text.strip() for segment in segments).strip()
            print(json.dumps(text), flush=True)


if __name__ == "__main__":
    main()
