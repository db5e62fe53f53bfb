"""A fine-tuned Whisper for other runtimes: faster-whisper, whisper.cpp and ONNX Runtime, and the proof that it hears
there what it hears in transformers."""
