"""`fedskew-site`: what a hospital runs, with its own data, its own rules and its own copy of the code."""
