"""What a worker process does beside its work: heartbeat, sweeps, its child processes, its neighbours."""
