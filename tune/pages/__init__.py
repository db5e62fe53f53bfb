"""Pages that one opens in a browser or prints, each a single file that needs nothing else."""
