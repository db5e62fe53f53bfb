"""How good a model is: normalisers, error rates with intervals, comparisons, signs of hallucination."""
