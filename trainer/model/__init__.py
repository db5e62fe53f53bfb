"""Whisper and its processor: from the hub, a folder or the embedded demo."""
