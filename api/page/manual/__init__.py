"""The manual on a page of its own, with its search: README and docs as this installation has them."""
