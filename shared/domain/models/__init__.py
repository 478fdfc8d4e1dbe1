"""What passes between planq and a language model, and the names of models."""
