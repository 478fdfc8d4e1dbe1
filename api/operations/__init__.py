"""For operators: is the process alive, what is going on, and the description of the API."""
