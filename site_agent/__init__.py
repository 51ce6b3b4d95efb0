"""`fedskew-site`, the hospital's side of a federation: its data, its policy and its copy of the approved code."""
