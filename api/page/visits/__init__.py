"""Who comes and goes: the login by key, and the files that every page loads."""
