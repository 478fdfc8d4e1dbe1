-- Submit: a request becomes a job. planq_submit_jobs is the one place where jobs are made: it writes the job, its plan where
-- it comes with one, and the first event. Callers, conversations, batches, schedules (schedule.sql) and steps that delegate
-- (planq_make_children) hand it `planq_new_job`s.

-- Inserts jobs, the plans that come with them, and their first events, set by set; one row for each job. `p_jobs` lists
-- `planq_new_job`s. `created_at` is null where nothing was inserted: the tenant has used the idempotency key before, be it
-- for another of these jobs, or, with `is_gone`, there is no job any more that could be forked. Until the commit retention
-- cannot remove that one: it waits for the key lock or passes the job over, and then sees the fork. A fork is shown the turns
-- of a conversation that its source is shown. Turns of a conversation, and jobs below them, are given it. All begin at `p_run_at`, null for at once; the time of those that are held does not run.
CREATE FUNCTION planq_submit_jobs(p_jobs json, p_conversation uuid DEFAULT NULL, p_run_at timestamptz DEFAULT NULL)
RETURNS TABLE (id uuid, created_at timestamptz, is_gone boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_run_at CONSTANT timestamptz := coalesce(p_run_at, planq_now());
BEGIN
    RETURN QUERY
    WITH given AS MATERIALIZED (
        SELECT g.*, g.forked_from IS NOT NULL AND f.id IS NULL AS is_gone, f.shown
        FROM json_populate_recordset(NULL::planq_new_job, p_jobs) AS g
        LEFT JOIN LATERAL (
            SELECT j.id, planq_history_of_child(j, coalesce(j.history->>'form', 'full')) AS shown
            FROM jobs j WHERE j.id = g.forked_from AND j.tenant_id = g.tenant_id FOR KEY SHARE
        ) f ON true
    ), made AS (
        INSERT INTO jobs AS j (
            :new_job_columns, root_job_id, parent_job_id, parent_round, parent_step_index, child_position, child_key, depth,
            status, format, run_at, wake_at, expires_at, paused_at, conversation_id, batch_id, batch_line, in_message_flow, history
        )
        SELECT
            :new_job_values, coalesce(g.root_job_id, g.id), g.parent_job_id, g.parent_round, g.parent_step_index,
            g.child_position, g.child_key, coalesce(g.depth, 0), 'queued', planq_format(), v_run_at,
            CASE WHEN v_run_at > planq_now() THEN v_run_at ELSE v_run_at + planq_wake_grace() END,
            CASE WHEN v_run_at < planq_never()
                THEN coalesce(g.paused_at, v_run_at) + make_interval(secs => g.expires_seconds) END,
            g.paused_at, p_conversation, g.batch_id, g.batch_line, p_conversation IS NOT NULL OR coalesce(g.is_task, false),
            CASE WHEN g.history_of IS NOT NULL THEN planq_history_until_now(g.tenant_id, g.history_of)
                ELSE coalesce(g.history, g.shown) END
        FROM given g WHERE NOT g.is_gone
        ON CONFLICT (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
        RETURNING j.id, j.created_at
    ), planned AS (
        INSERT INTO plans (job_id, round, tenant_id, source, body, reuse)
        SELECT g.id, 0, g.tenant_id, coalesce(g.plan_source, 'caller'), g.plan::json, g.reuse::json
        FROM given g JOIN made m ON m.id = g.id WHERE g.plan IS NOT NULL
    ), told AS (
        INSERT INTO events (tenant_id, job_id, kind, data)
        SELECT g.tenant_id, g.id, 'job_submitted', CASE
            WHEN g.origin IS NOT NULL THEN g.origin
            WHEN g.forked_from IS NOT NULL THEN json_build_object('forked_from', g.forked_from)
            WHEN p_conversation IS NOT NULL THEN json_build_object('conversation_id', p_conversation) END
        FROM given g JOIN made m ON m.id = g.id
    ), referred AS MATERIALIZED (
        -- A job that is run again refers to bytes that are as old as the first job, which may be removed at this moment.
        SELECT planq_touch_payload(g.tenant_id, decode(part->>'sha256', 'hex'))
        FROM given g JOIN made m ON m.id = g.id CROSS JOIN LATERAL jsonb_array_elements(g.parts::jsonb) part
        WHERE g.parts IS NOT NULL ORDER BY part->>'sha256'
    )
    SELECT g.id, m.created_at, g.is_gone FROM given g LEFT JOIN made m ON m.id = g.id
    WHERE (SELECT count(*) FROM referred) IS NOT NULL;  -- so that they are touched
END $$;
