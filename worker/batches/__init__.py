"""Batches: calls that wait are sent in providers' batches."""
