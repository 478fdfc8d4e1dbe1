-- Makes the job of a schedule that is due and moves the schedule on, in one commit; no row where somebody else has done
-- so. `next_at` is null where it is over. All jobs of a schedule share its budget: each gets what is left after the one
-- before it.
WITH fired AS (
    UPDATE schedules SET budget = planq_budget_left(budget, last_job_id), next_at = %(next_at)s,
        is_active = %(next_at)s::timestamptz IS NOT NULL, last_job_id = %(job_id)s
    WHERE id = %(id)s AND is_active AND next_at = %(due_at)s
    RETURNING *
), new_job AS (
    INSERT INTO jobs (id, tenant_id, root_job_id, strategy, status, model, limits, metadata, input, user_id, trace_id,
                      wake_at, expires_at, agent_name, agent_version, skill_versions, budget, tools)
    SELECT %(job_id)s, tenant_id, %(job_id)s, strategy, 'queued', %(model)s, limits, %(metadata)s, input, user_id,
           %(trace_id)s, planq_now() + planq_wake_grace(),
           planq_now() + make_interval(secs => least((limits ->> 'queue_timeout_seconds')::float8,
                                               (limits ->> 'job_timeout_seconds')::float8)),
           %(agent)s, %(agent_version)s, %(skill_versions)s, budget, tools
    FROM fired
    RETURNING id, tenant_id
), told AS (
    INSERT INTO events (tenant_id, job_id, kind, data)
    SELECT tenant_id, id, 'job_submitted', json_build_object('schedule', %(id)s::uuid) FROM new_job
)
SELECT id FROM new_job
