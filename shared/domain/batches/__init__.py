"""Batches: many requests in one file, each of which becomes a job."""
