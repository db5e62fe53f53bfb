"""Looking at a data set before anything is spent on it: its audio, its texts, its splits. Trains nothing."""
