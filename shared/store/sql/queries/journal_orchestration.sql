-- Appends those transitions of an orchestration to its events that are not there yet; returns their numbers. The job is
-- locked by a statement before this one, so that nobody else appends meanwhile.
WITH told AS (
    SELECT count(*) AS n FROM events WHERE job_id = %(job_id)s AND kind = 'orchestration'
), added AS (
    INSERT INTO events (tenant_id, job_id, kind, data)
    SELECT j.tenant_id, j.id, 'orchestration', t.value
    FROM jobs j, told, json_array_elements(%(transitions)s) WITH ORDINALITY AS t (value, position)
    WHERE j.id = %(job_id)s AND (t.value->>'n')::int >= told.n
    ORDER BY t.position
    RETURNING data
)
SELECT (data->>'n')::int AS n FROM added ORDER BY 1
