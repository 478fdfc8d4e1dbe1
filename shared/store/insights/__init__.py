"""Insights: learned, offered, measured, and their tables."""
