"""Conversations: messages in their order, what becomes of one that arrives, and what a model is shown of them."""
