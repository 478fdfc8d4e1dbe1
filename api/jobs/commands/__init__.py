"""Commands on jobs: submit, look, hold, fork; and the files that they read."""
