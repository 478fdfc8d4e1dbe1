-- Running steps whose worker's lease has ended, or whose worker did not enforce the step's deadline.
SELECT s.job_id, s.round, s.index, s.attempt, s.effect, s.retries, s.worker_losses, s.releases, s.gathered, s.tool_name,
       s.recovery, s.unsure, s.timeout_seconds, s.worker_id, w.id IS NULL AS is_worker_lost
FROM steps s
LEFT JOIN workers w ON w.id = s.worker_id AND w.heartbeat_at > now() - make_interval(secs => %(lease_seconds)s)
WHERE s.status = 'running'
  AND (w.id IS NULL OR s.deadline < now() - make_interval(secs => %(deadline_grace_seconds)s))
LIMIT %(limit)s
