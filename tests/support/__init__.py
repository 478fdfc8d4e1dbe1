"""What several tests need: waiting on conditions, real servers, real processes."""
