"""Live streams: who follows, what a model is saying, their tables."""
