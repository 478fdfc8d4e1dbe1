"""Agents as documents, and what an agent that calls others has to decide: pure, as the rest of the core."""
