"""Batches: the file that comes in, its lines, what is asked of it, their tables."""
