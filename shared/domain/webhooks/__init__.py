"""Webhooks out: what an endpoint is told, how a delivery is signed, and when it is tried again."""
