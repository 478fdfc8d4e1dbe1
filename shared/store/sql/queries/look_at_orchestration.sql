-- An orchestration job's frame with its steps in plan order, one row each; none for a job that is no orchestration.
SELECT j.with_input AS frame, s.round, s.index, s.status, s.attempt > 0 AS was_called, s.error,
       extract(epoch FROM s.finished_at - s.started_at)::float8 AS seconds
FROM jobs j
JOIN plans p ON p.job_id = j.id AND p.round = 0 AND p.source = 'orchestrate'
JOIN steps s ON s.job_id = j.id AND s.round = 0
WHERE j.id = %(job_id)s
ORDER BY s.index
