"""Reminders that jobs have scheduled."""
