"""How good a model is: plan, measurement, tables and page."""
