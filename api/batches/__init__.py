"""What uploads of batches become."""
