"""What the desk's programs share; planq has a package of this name, and does not mind."""
