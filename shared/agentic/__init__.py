"""The pure core: what decides, and nothing that touches the world.

No I/O, clock, randomness or logging here (import-linter enforces it); times, jitter and ids come in as arguments.
"""
