"""A plan from its text to compiled steps: reading, validation, order of execution, forks."""
