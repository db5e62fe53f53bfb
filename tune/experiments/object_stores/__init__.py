"""Experiments in S3 and Google Cloud Storage: objects, and the one session that writes them."""
