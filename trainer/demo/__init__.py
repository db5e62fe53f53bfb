"""The embedded demo: a small Whisper and a data set that it hears badly, both made from espeak-ng."""
