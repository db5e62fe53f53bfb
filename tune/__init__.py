"""Hyperparameter search over `trainer.train`: Ray Tune, Optuna, ASHA, MLflow."""
