"""Sends what is to be told outside the house: `posting` makes one request, `sender` all that are due."""
