"""Brings an experiment's log to MLflow, an Optuna study and TensorBoard."""
