-- Appends the transitions of a plan that was refused to the events of the job whose step asked for it, once. The job is
-- locked by a statement before this one, so that nobody else appends meanwhile.
INSERT INTO events (tenant_id, job_id, kind, data)
SELECT j.tenant_id, j.id, 'orchestration', t.value
FROM jobs j, json_array_elements(%(transitions)s) WITH ORDINALITY AS t (value, position)
WHERE j.id = %(job_id)s AND NOT EXISTS (
    SELECT FROM events e WHERE e.job_id = j.id AND e.kind = 'orchestration' AND (e.data->>'step')::int = %(step)s
)
ORDER BY t.position
RETURNING 1 AS told
