"""Conversations: messages, turns, their tables."""
