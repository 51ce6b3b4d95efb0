"""What surrounds the rounds: settings, evaluation, checkpoints, results, engines and the command line."""
