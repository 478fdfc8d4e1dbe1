"""Loops that froze, and their table."""
