-- Inserts jobs, in one commit; see planq_submit_jobs.
SELECT * FROM planq_submit_jobs(
    %(id)s::uuid[], %(tenant_id)s::text[], %(strategy)s::text[], %(model)s::text[], %(limits)s::text[],
    %(tools)s::text[], %(metadata)s::text[], %(input)s::text[], %(user_id)s::text[], %(trace_id)s::text[],
    %(idempotency_key)s::text[], %(request_hash)s::text[], %(plan)s::text[], %(expires_seconds)s::float8[],
    %(forked_from)s::uuid[], %(reuse)s::text[], %(agent_name)s::text[], %(agent_version)s::int[],
    %(skill_versions)s::text[], %(action)s::text[], %(with_input)s::text[], %(budget)s::text[]
)
