"""Webhooks: endpoints, secrets, deliveries."""
