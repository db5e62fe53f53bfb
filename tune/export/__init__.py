"""Models to take away: a Hugging Face folder with its card, other formats beside it, and the way to the hub."""
