"""Transcripts of recordings of any length with a Whisper model; trains nothing."""
