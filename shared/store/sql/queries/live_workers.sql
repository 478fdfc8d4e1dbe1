-- The workers whose lease is alive.
SELECT id, name, lanes, capacity, version, started_at, heartbeat_at, lag_ms, in_flight, late_outcomes,
       counts
FROM workers
WHERE heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s) ORDER BY name
