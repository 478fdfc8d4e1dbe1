-- What a worker holds: running steps and claimed stages, with what the wake-up of a next attempt needs.
SELECT job_id, round, index, attempt, effect, lane, tool_name, NULL AS status FROM steps
WHERE status = 'running' AND worker_id = %(id)s
UNION ALL
SELECT id, NULL, NULL, stage_attempt, NULL, NULL, NULL, status FROM jobs WHERE stage_worker = %(id)s
