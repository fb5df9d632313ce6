"""Evaluation: loss and metric of model versions, and predictions of the trained model."""
