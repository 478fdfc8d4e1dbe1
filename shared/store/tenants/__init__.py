"""Tenants: configuration, keys, secrets, rates, places, their tables."""
