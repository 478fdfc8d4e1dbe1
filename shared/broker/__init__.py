"""Celery carries wake-ups: ids only, which the claim checks against the database."""
