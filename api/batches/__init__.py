"""Batches: many requests in one file, from the upload to the results of its lines."""
