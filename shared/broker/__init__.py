"""Celery as a carrier of wake-ups: names, messages, settings, the hardened Redis transport, the publisher.

Messages hold ids only; whatever they say is checked against the database by the claim.
"""
