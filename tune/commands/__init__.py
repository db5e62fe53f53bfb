"""One file a command word: words in, exit code out."""
