"""Routes of the overview and of the search."""
