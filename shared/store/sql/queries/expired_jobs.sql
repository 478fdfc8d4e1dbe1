-- Jobs that have used up the time they may be queued, or take as a whole; nobody is queued for longer than that.
SELECT id AS job_id, status,
       least((limits->>'queue_timeout_seconds')::float8, (limits->>'job_timeout_seconds')::float8)
           AS queue_timeout_seconds,
       (limits->>'job_timeout_seconds')::float8 AS job_timeout_seconds, parent_job_id IS NOT NULL AS is_child
FROM jobs
WHERE status IN ('queued', 'planning', 'executing', 'input_required', 'responding')
  AND expires_at <= planq_now() AND paused_at IS NULL
ORDER BY expires_at LIMIT %(limit)s
