"""Selection of a method for a federation: a race with equal budgets, scored on validation data."""
