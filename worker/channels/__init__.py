"""Sends what conversations say over their channels: `sending` for all of them, one module for each kind."""
