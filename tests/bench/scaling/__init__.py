"""What `tests/bench/scale.py` is made of: hosts, load, readings, and the verdict on what is used up."""
