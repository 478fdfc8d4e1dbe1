"""What operators' programs read: `/metrics` and `/readyz`."""
