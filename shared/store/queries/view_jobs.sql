-- What callers see of jobs, a row for each of those that there are: the job, the plan of its present round, and the
-- first `steps` steps of that round as one JSON array; plan and steps only where they are `wanted`, or the job has ended.
-- A budget comes with what its tree has used of it.
-- OFFSET keeps the planner from joining whole tables: a plan that it made for empty ones would be kept.
SELECT j.*, w.is_wanted, p.body AS plan_body, p.errors AS plan_errors, s.steps,
       CASE WHEN j.is_whole AND j.limits_of_tree IS NOT NULL THEN (
           SELECT (j.limits_of_tree || jsonb_build_object('used', jsonb_build_object(
               'tokens', u.tokens::bigint, 'cost_usd', u.cost, 'model_calls', u.calls::bigint,
               'steps', u.steps::bigint)))::text
           FROM planq_tree_used(coalesce(j.root_job_id, j.id)) u
       ) END AS budget
FROM unnest(%(ids)s::uuid[], %(tenant_ids)s::text[], %(wanted)s::bool[]) AS w (id, tenant_id, is_wanted)
CROSS JOIN LATERAL (
    SELECT id, tenant_id, status, strategy, input, answer, error::text AS error, model_calls, input_tokens, output_tokens,
           cost_usd, created_at, started_at, finished_at, paused_at, expires_at, forked_from, metadata::text AS metadata,
           agent_name, agent_version, action, parent_job_id, parent_step_index, depth, output::text AS output,
           chained::text AS chained, budget::jsonb AS limits_of_tree, root_job_id, round,
           w.is_wanted OR status = ANY (%(ended)s::text[]) AS is_whole
    FROM jobs WHERE id = w.id AND tenant_id = w.tenant_id OFFSET 0
) j
LEFT JOIN LATERAL (
    SELECT body::text AS body, errors::text AS errors FROM plans
    WHERE j.is_whole AND job_id = j.id AND round = j.round OFFSET 0
) p ON true
CROSS JOIN LATERAL (
    SELECT json_agg(to_json(s))::text AS steps FROM (
        SELECT index, kind, tool_name, status, attempt, arguments, inputs, output, encode(payload_hash, 'hex') AS payload_hash,
               output_bytes, excerpts, error, depends_on, reused_job, reused_index, effect, recovery, question,
               started_at, finished_at
        FROM steps WHERE j.is_whole AND job_id = j.id AND round = j.round ORDER BY index LIMIT %(steps)s
    ) s
) s
