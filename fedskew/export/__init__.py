"""A trained model to take away (from_run.py, model_card.py, onnx_file.py), and its use on new data (predict.py)."""
