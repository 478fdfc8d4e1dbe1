-- Running steps whose worker's lease has ended and of which it is noted who was in flight with them (`company`, 1 where
-- the step was alone), or whose worker did not enforce the step's deadline. `seen` as in shared.ports.Loss.
-- Where somebody will look whether an unsafe call took effect, it must not act any more by then: its
-- worker has gone ('epoch') or has let go of it (no worker, or one that has given its lease up), or the time of the
-- call is over (that of finding out too, where it was in_doubt), by a margin. A living worker of the lane `io` says so
-- itself, however late: it cannot kill a thread.
SELECT s.job_id, s.round, s.index, s.attempt, s.effect, s.retries, s.worker_losses, s.releases, s.joined, s.tool_name,
       s.recovery, s.in_doubt, s.timeout_seconds, s.worker_id, w.id IS NULL AS is_worker_lost,
       coalesce(n.company, 1) AS company,
       CASE WHEN s.worker_id IS NULL THEN 'disowned'
            WHEN EXISTS (SELECT FROM workers g WHERE g.id = s.worker_id AND g.heartbeat_at = 'epoch') THEN 'gone'
            ELSE 'lease' END AS seen
FROM steps s
LEFT JOIN workers w ON w.id = s.worker_id AND w.heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s)
LEFT JOIN suspects n ON n.job_id = s.job_id AND n.round = s.round AND n.index = s.index AND n.attempt = s.attempt
WHERE s.status = 'running'
  AND CASE WHEN w.id IS NULL THEN (s.worker_id IS NULL OR n.job_id IS NOT NULL) AND NOT (
        s.effect = 'unsafe' AND s.recovery <> 'fail'
        AND s.deadline + make_interval(secs => %(margin_seconds)s + s.in_doubt::int * s.timeout_seconds) > planq_now()
        AND EXISTS (SELECT FROM workers g WHERE g.id = s.worker_id AND g.heartbeat_at > 'epoch'))
      ELSE s.deadline < planq_now() - make_interval(secs => %(deadline_grace_seconds)s)
        AND NOT (s.effect = 'unsafe' AND s.recovery <> 'fail' AND s.lane = 'io') END
LIMIT %(limit)s
