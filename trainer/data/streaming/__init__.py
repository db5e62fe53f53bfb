"""Data that is read while the model trains, and never downloaded as a whole."""
