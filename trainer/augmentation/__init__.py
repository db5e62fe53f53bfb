"""Training clips that sound otherwise each time: changes of the waveform, and which clip gets which."""
