"""planq on one machine: its processes kept alive, with a PostgreSQL and a Valkey server of its own."""
