"""A report on experiments: from the runs' records to tables, verdicts and figures."""
