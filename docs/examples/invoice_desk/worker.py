"""The desk's own worker, of which planq knows nothing."""

raise RuntimeError("nobody but the desk imports this")
