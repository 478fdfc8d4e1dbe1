"""For who looks after jobs: why one waits, how many stand where, and whose an id is."""
