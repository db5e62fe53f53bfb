"""Ray clusters from outside: their jobs, and clusters on Vertex AI."""
