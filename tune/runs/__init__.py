"""A search or a training, from its plan to its outcome."""
