"""Everything around the rounds: settings, methods, evaluation, records, checkpoints and run folders."""
