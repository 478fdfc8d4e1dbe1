"""Channels: over which ways replies leave, what of an answer is read there, and how a message is shown."""
