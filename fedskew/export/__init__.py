"""Export of a trained model (from_run.py), and predictions on new data (predict.py)."""
