"""What tools return: artifacts, and the texts in which results reach a model."""
