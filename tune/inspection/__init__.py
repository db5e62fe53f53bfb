"""What `tune-whisper inspect` runs, shows and writes."""
