"""Any source of speech to clips, and clips to features."""
