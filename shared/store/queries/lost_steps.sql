-- Running steps whose worker's lease has ended, or whose worker did not enforce the step's deadline. `seen` as in
-- shared.ports.Loss.
SELECT s.job_id, s.round, s.index, s.attempt, s.effect, s.retries, s.worker_losses, s.releases, s.gathered, s.tool_name,
       s.recovery, s.unsure, s.timeout_seconds, s.worker_id, w.id IS NULL AS is_worker_lost,
       CASE WHEN s.worker_id IS NULL THEN 'disowned'
            WHEN EXISTS (SELECT FROM workers g WHERE g.id = s.worker_id AND g.heartbeat_at = 'epoch') THEN 'gone'
            ELSE 'lease' END AS seen
FROM steps s
LEFT JOIN workers w ON w.id = s.worker_id AND w.heartbeat_at > now() - make_interval(secs => %(lease_seconds)s)
WHERE s.status = 'running'
  AND (w.id IS NULL OR s.deadline < now() - make_interval(secs => %(deadline_grace_seconds)s))
LIMIT %(limit)s
