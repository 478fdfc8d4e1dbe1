-- PLAN and RESPOND stages whose worker's lease has ended and of which it is noted who was in flight with them, or that
-- have taken longer than any stage can. `company` and `seen` as in lost_steps.
SELECT j.id AS job_id, j.status, j.stage_attempt, j.stage_losses, w.id IS NULL AS is_worker_lost,
       coalesce(n.company, 1) AS company,
       CASE WHEN EXISTS (SELECT FROM workers g WHERE g.id = j.stage_worker AND g.heartbeat_at = 'epoch') THEN 'gone'
            ELSE 'lease' END AS seen
FROM jobs j
LEFT JOIN workers w ON w.id = j.stage_worker AND w.heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s)
LEFT JOIN suspects n ON n.job_id = j.id AND n.index = -1 AND n.attempt = j.stage_attempt
WHERE j.stage_worker IS NOT NULL AND ((w.id IS NULL AND n.job_id IS NOT NULL) OR j.deadline < planq_now())
LIMIT %(limit)s
