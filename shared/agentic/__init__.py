"""Pure decisions: no I/O, clock, randomness or logging (import-linter); times and ids are arguments."""
