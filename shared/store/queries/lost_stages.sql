-- PLAN and RESPOND stages whose worker's lease has ended, or that have taken longer than any stage can. `seen` as in
-- shared.ports.Loss.
SELECT j.id AS job_id, j.status, j.stage_attempt, j.stage_losses, w.id IS NULL AS is_worker_lost,
       CASE WHEN EXISTS (SELECT FROM workers g WHERE g.id = j.stage_worker AND g.heartbeat_at = 'epoch') THEN 'gone'
            ELSE 'lease' END AS seen
FROM jobs j
LEFT JOIN workers w ON w.id = j.stage_worker AND w.heartbeat_at > now() - make_interval(secs => %(lease_seconds)s)
WHERE j.stage_worker IS NOT NULL AND (w.id IS NULL OR j.deadline < now()) LIMIT %(limit)s
