-- Waiting steps that asked a person, and whose time for an answer is over.
SELECT s.job_id, s.round, s.index, s.tenant_id,
       (j.limits->>'human_wait_seconds')::float8 AS human_wait_seconds
FROM steps s JOIN jobs j ON j.id = s.job_id
WHERE s.status = 'waiting' AND s.question IS NOT NULL AND s.wake_at <= planq_now() AND j.paused_at IS NULL
ORDER BY s.wake_at LIMIT %(limit)s
