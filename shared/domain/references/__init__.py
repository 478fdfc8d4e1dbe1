"""References to the outputs of earlier steps: their grammar, what they point at, and their types."""
