"""What runs while a Whisper is trained: batches, steps, evaluations, checkpoints."""
