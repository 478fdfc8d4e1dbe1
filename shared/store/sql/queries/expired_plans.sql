-- Jobs whose plan has used up its time.
SELECT id AS job_id, (limits->>'plan_timeout_seconds')::float8 AS plan_timeout_seconds FROM jobs
WHERE status IN ('executing', 'input_required') AND deadline IS NOT NULL AND paused_at IS NULL
  AND deadline <= planq_now() LIMIT %(limit)s
