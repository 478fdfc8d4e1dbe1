-- Inserts a job, its plan if the caller sent one, and its first event, in one commit.
-- No row comes back when the tenant has used the idempotency key before.
WITH new_job AS (
    INSERT INTO jobs (id, tenant_id, root_job_id, strategy, status, model, limits, tools, metadata, input, user_id,
                      trace_id, idempotency_key, request_hash, wake_at, expires_at, forked_from)
    VALUES (%(id)s, %(tenant_id)s, %(id)s, %(strategy)s, 'queued', %(model)s, %(limits)s, %(tools)s, %(metadata)s,
            %(input)s, %(user_id)s, %(trace_id)s, %(idempotency_key)s, %(request_hash)s, now() + planq_wake_grace(),
            now() + make_interval(secs => %(expires_seconds)s), %(forked_from)s)
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
SELECT id, created_at FROM new_job
