"""What a worker process does beside its work: heartbeat, sweeps, its prefork processes, its peers."""
