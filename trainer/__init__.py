"""Fine-tuning of Whisper: `train(config, report)` and what it needs. Knows nothing of searching."""
