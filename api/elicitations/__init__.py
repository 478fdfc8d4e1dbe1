"""Questions to people: the inbox, and what an answer becomes."""
