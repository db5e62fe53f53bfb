"""Models in MLflow's registry: logged, registered, loaded and served."""
