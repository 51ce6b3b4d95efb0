"""Export of a trained model (from_run.py, model_card.py), and predictions on new data (predict.py)."""
