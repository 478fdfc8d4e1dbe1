"""What the desk may pay without asking anybody."""

MOST_CENTS = 100_000
