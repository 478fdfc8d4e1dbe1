"""Routes of conversations and messages."""
