"""Durable work in PostgreSQL: claims and transitions, the worker registry and its sweep, and what they announce."""
