"""Rounds: what a planner of a further round is shown, what it may do next, and when the loop ends."""
