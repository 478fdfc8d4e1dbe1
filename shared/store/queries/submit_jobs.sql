-- Inserts jobs, the plans that their callers sent, and their first events, in one commit; one row for each job.
-- `created_at` is null where nothing was inserted: the tenant has used the idempotency key before, be it for another of
-- these jobs, or, with `is_gone`, there is no job any more that could be forked. Until the commit retention cannot remove
-- that one: it waits for the key lock or passes the job over, and then sees the fork.
WITH given AS (
    SELECT g.*, s.id AS source
    FROM unnest(%(id)s::uuid[], %(tenant_id)s::text[], %(strategy)s::text[], %(model)s::text[], %(limits)s::text[],
                %(tools)s::text[], %(metadata)s::text[], %(input)s::text[], %(user_id)s::text[], %(trace_id)s::text[],
                %(idempotency_key)s::text[], %(request_hash)s::text[], %(plan)s::text[],
                %(expires_seconds)s::float8[], %(forked_from)s::uuid[], %(reuse)s::text[],
                %(agent_name)s::text[], %(agent_version)s::int[], %(skill_versions)s::text[],
                %(action)s::text[], %(with_input)s::text[], %(budget)s::text[])
        AS g (id, tenant_id, strategy, model, limits, tools, metadata, input, user_id, trace_id, idempotency_key,
              request_hash, plan, expires_seconds, forked_from, reuse, agent_name, agent_version, skill_versions,
              action, with_input, budget)
    -- OFFSET keeps the planner from joining the whole table.
    LEFT JOIN LATERAL (
        SELECT j.id FROM jobs j WHERE j.id = g.forked_from AND j.tenant_id = g.tenant_id OFFSET 0 FOR KEY SHARE
    ) s ON true
), new_job AS (
    INSERT INTO jobs (id, tenant_id, root_job_id, strategy, status, model, limits, tools, metadata, input, user_id,
                      trace_id, idempotency_key, request_hash, wake_at, expires_at, forked_from,
                      agent_name, agent_version, skill_versions, action, with_input, budget)
    SELECT id, tenant_id, id, strategy, 'queued', model, limits::json, tools::text[], metadata::json, input, user_id,
           trace_id, idempotency_key, request_hash, now() + planq_wake_grace(),
           now() + make_interval(secs => expires_seconds), forked_from,
           agent_name, agent_version, skill_versions::int[], action, with_input::json, budget::json
    FROM given WHERE forked_from IS NULL OR source IS NOT NULL
    ON CONFLICT (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING id, tenant_id, forked_from, created_at
), new_plan AS (
    INSERT INTO plans (job_id, round, tenant_id, source, body, reuse)
    SELECT g.id, 0, g.tenant_id, 'caller', g.plan::json, g.reuse::json FROM given g JOIN new_job n ON n.id = g.id
    WHERE g.plan IS NOT NULL
), told AS (
    INSERT INTO events (tenant_id, job_id, kind, data)
    SELECT tenant_id, id, 'job_submitted',
           CASE WHEN forked_from IS NOT NULL THEN json_build_object('forked_from', forked_from) END
    FROM new_job
)
SELECT g.id, n.created_at, g.forked_from IS NOT NULL AND g.source IS NULL AS is_gone
FROM given g LEFT JOIN new_job n ON n.id = g.id
