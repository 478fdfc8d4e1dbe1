"""What operators' programs read: `/metrics`, `/readyz` and `/statusz`."""
