-- All that was in flight in workers whose lease has ended; the number of a stage is -1.
SELECT s.worker_id, s.job_id, s.round, s.index, s.attempt, s.lane, s.tool_name
FROM steps s
LEFT JOIN workers w ON w.id = s.worker_id AND w.heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s)
WHERE s.status = 'running' AND s.worker_id IS NOT NULL AND w.id IS NULL
UNION ALL
SELECT j.stage_worker, j.id, j.round, -1, j.stage_attempt, 'io', j.status
FROM jobs j
LEFT JOIN workers w ON w.id = j.stage_worker AND w.heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s)
WHERE j.stage_worker IS NOT NULL AND w.id IS NULL
