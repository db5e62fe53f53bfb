"""Followers of an experiment's log, which write to MLflow, an Optuna study and TensorBoard."""
