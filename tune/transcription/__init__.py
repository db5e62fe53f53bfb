"""Transcripts shown, written and compared: progress, tables, files, the page of two models side by side."""
