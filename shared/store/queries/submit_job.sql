-- Inserts a job, its plan if the caller sent one, and its first event, in one commit.
-- `created_at` is null when nothing was inserted: the tenant has used the idempotency key before, or, with `is_gone`,
-- there is no job any more that could be forked. Until the commit retention cannot remove that one: it waits for the key
-- lock or passes the job over, and then sees the fork.
WITH source AS (
    SELECT id FROM jobs WHERE id = %(forked_from)s::uuid AND tenant_id = %(tenant_id)s FOR KEY SHARE
), new_job AS (
    INSERT INTO jobs (id, tenant_id, root_job_id, strategy, status, model, limits, tools, metadata, input, user_id,
                      trace_id, idempotency_key, request_hash, wake_at, expires_at, forked_from)
    SELECT %(id)s, %(tenant_id)s, %(id)s, %(strategy)s, 'queued', %(model)s, %(limits)s, %(tools)s, %(metadata)s,
           %(input)s, %(user_id)s, %(trace_id)s, %(idempotency_key)s, %(request_hash)s, now() + planq_wake_grace(),
           now() + make_interval(secs => %(expires_seconds)s), %(forked_from)s
    WHERE %(forked_from)s::uuid IS NULL OR EXISTS (SELECT FROM source)
    ON CONFLICT (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING id, tenant_id, created_at
), new_plan AS (
    INSERT INTO plans (job_id, round, tenant_id, source, body, reuse)
    SELECT id, 0, tenant_id, 'caller', %(plan)s::json, %(reuse)s::json FROM new_job WHERE %(plan)s::json IS NOT NULL
), told AS (
    INSERT INTO events (tenant_id, job_id, kind, data)
    SELECT tenant_id, id, 'job_submitted',
           CASE WHEN %(forked_from)s::uuid IS NOT NULL THEN json_build_object('forked_from', %(forked_from)s::uuid) END
    FROM new_job
)
SELECT (SELECT created_at FROM new_job) AS created_at,
       %(forked_from)s::uuid IS NOT NULL AND NOT EXISTS (SELECT FROM source) AS is_gone
