"""What goes wrong between hospitals, and what becomes of it: rows.py does it, stage.py is what it is done to."""
