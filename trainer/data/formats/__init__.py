"""Formats of audio files: what their headers say, and the two libraries that decode them."""
