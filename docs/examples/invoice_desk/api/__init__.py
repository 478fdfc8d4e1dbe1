"""The desk's own API, of which planq knows nothing."""
