"""Fine-tuning of Whisper: `train(config, data, report)` and what it needs. Knows nothing of searching."""
