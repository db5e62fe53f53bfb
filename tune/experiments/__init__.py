"""An experiment on disk or in a bucket: its log, what the log folds to, and what is made from it."""
