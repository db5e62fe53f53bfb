"""What to do next, in plain words, where the numbers carry it."""
