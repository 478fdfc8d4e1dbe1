-- PLAN and RESPOND stages whose worker's lease has ended, or that have taken longer than any stage can.
SELECT j.id AS job_id, j.status, j.stage_attempt, j.stage_losses FROM jobs j
LEFT JOIN workers w ON w.id = j.stage_worker AND w.heartbeat_at > now() - make_interval(secs => %(lease_seconds)s)
WHERE j.stage_worker IS NOT NULL AND (w.id IS NULL OR j.deadline < now()) LIMIT %(limit)s
