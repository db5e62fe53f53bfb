"""Experiments in S3 and Google Cloud Storage: objects, the lease of the one writer, the log as segments."""
