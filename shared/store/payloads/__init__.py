"""Large outputs under their hash, in the database, a folder or a bucket."""
