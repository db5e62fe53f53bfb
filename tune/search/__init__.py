"""What decides on trials: rules over records, without files, a running Ray, MLflow or a screen."""
