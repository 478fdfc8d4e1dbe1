"""Who asks, what a key opens, and how much of it: the guard, scopes, sessions, limits, revocation."""
