"""Small faults that tests must find: `python -m tests.planted` plants each in a copy of the sources."""
