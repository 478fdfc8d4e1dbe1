-- Orchestrations: plans of agents as their tools and stages see them.

-- name: look_at_orchestration
-- An orchestration job's frame with its steps in plan order, one row each; none for a job that is no orchestration.
SELECT j.with_input AS frame, s.round, s.index, s.status, s.attempt > 0 AS was_called, s.error,
       extract(epoch FROM s.finished_at - s.started_at)::float8 AS seconds
FROM jobs j
JOIN plans p ON p.job_id = j.id AND p.round = 0 AND p.source = 'orchestrate'
JOIN steps s ON s.job_id = j.id AND s.round = 0
WHERE j.id = %(job_id)s
ORDER BY s.index

-- name: frame_of_orchestration
-- The frame of an orchestration's job, also of one that has no steps.
SELECT with_input AS frame FROM jobs WHERE id = %(job_id)s AND with_input->'steps' IS NOT NULL

-- name: lock_orchestration
-- Keeps everybody else from changing a job until the transaction ends.
SELECT id FROM jobs WHERE id = %(job_id)s FOR NO KEY UPDATE

-- name: journal_orchestration
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

-- name: journal_refusal
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

-- name: tree_usage
-- What all jobs below a job have used.
SELECT u.jobs, u.model_calls, u.input_tokens, u.output_tokens, u.cost_usd
FROM jobs j CROSS JOIN LATERAL planq_usage(j.id, false) u WHERE j.id = %(job_id)s

-- name: model_of_job
-- The model that a job uses.
SELECT model FROM jobs WHERE id = %(job_id)s

-- name: agents_in_use
-- The newest documents in use of some agents.
SELECT DISTINCT ON (name) name, document FROM agents
WHERE tenant_id = %(tenant_id)s AND name = ANY (%(names)s) AND retired_at IS NULL
ORDER BY name, version DESC

-- name: agent_catalogue
-- The newest documents of agents in use, in the order of their names.
SELECT DISTINCT ON (name) name, document FROM agents
WHERE tenant_id = %(tenant_id)s AND retired_at IS NULL
ORDER BY name, version DESC
LIMIT %(limit)s
