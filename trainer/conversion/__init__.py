"""A fine-tuned Whisper for faster-whisper and whisper.cpp, and the proof that it hears there what it hears in
transformers."""
