"""Learning curves on which a search can be tried out within seconds: real ones in a table, and made-up ones."""
