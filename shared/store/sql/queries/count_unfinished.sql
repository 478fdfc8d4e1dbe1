-- How many jobs and steps stand in each unfinished state, for metrics and `planq doctor`.
SELECT 'job' AS kind, status, count(*)::int AS n FROM jobs
WHERE status IN ('queued', 'planning', 'executing', 'input_required', 'responding') GROUP BY status
UNION ALL
SELECT 'step', s.status, count(*)::int FROM steps s JOIN jobs j ON j.id = s.job_id
WHERE j.status IN ('queued', 'planning', 'executing', 'input_required', 'responding')
  AND s.status IN ('pending', 'ready', 'running', 'waiting') GROUP BY s.status
