"""Conversations: what messages become, turns, their agents, and the message flow's words for them."""
