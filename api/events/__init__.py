"""Events as they happen, and what a model says meanwhile."""
