"""Batches: the list, and one with its progress and what can be done to it."""
