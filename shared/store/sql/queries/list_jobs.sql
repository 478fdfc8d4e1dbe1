-- A page of a tenant's jobs, newest first, below the cursor (the last id of the page before); with `roots` without child
-- jobs.
SELECT id, status, strategy, input, answer, error, model_calls, input_tokens, output_tokens, cost_usd, created_at,
       started_at, finished_at, paused_at, expires_at, forked_from, metadata, user_id, agent_name, agent_version, parent_job_id,
       parent_step_index, depth
FROM jobs
WHERE tenant_id = %(tenant_id)s
  AND (%(status)s::text IS NULL OR status = %(status)s)
  AND (NOT %(roots)s OR parent_job_id IS NULL)
  AND (%(below)s::uuid IS NULL OR id < %(below)s)
ORDER BY id DESC LIMIT %(limit)s
