-- View: what callers see of jobs. It is a function so that a connection plans it once: as a statement of its own it was
-- planned each time, which took longer than the look itself (0.18 of 0.21 ms; 11/2026).

-- Returns what callers see of jobs, a row for each that exists. The status is `input_required` while the job, or one below it, asks a
-- person. There is the plan of the first round, the plans of further rounds as `later_plans` [{round, source, body, errors}], and
-- the first `p_steps` steps of all rounds as one JSON array; plans and steps only where they are wanted, or the job has ended. A
-- budget comes with what its tree has used. `stage_retry` is there while the stage of the job is tried again after a failure of
-- its model, `next_attempt_at` while it waits for that. OFFSET keeps the planner from joining whole tables.
CREATE FUNCTION planq_view_jobs(p_ids uuid[], p_tenants text[], p_wanted boolean[], p_ended text[], p_steps int)
RETURNS TABLE (
    :shown_types, status text, outcome text, answer text, preview text, output text, chained text, error text, model_calls int,
    input_tokens bigint, output_tokens bigint, cache_read_tokens bigint, cache_write_tokens bigint, cost_usd numeric,
    created_at timestamptz, started_at timestamptz, finished_at timestamptz, paused_at timestamptz, expires_at timestamptz,
    parent_job_id uuid, parent_step_index int, depth int, round int, stop_reason text, conversation_id uuid,
    in_message_flow boolean, batch_id uuid, batch_line int, custom_id text, is_whole boolean, is_wanted boolean,
    plan_source text, plan_body text, plan_errors text, later_plans text, steps text, budget text, stage_retry text,
    next_attempt_at timestamptz, open_questions text
) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT :shown_values, CASE WHEN q.questions IS NOT NULL THEN 'input_required' ELSE j.status END, planq_outcome(j.status, j.error), j.answer, j.preview,
           j.output::text, j.chained::text, j.error::text, j.model_calls,
           j.input_tokens, j.output_tokens, j.cache_read_tokens, j.cache_write_tokens, j.cost_usd,
           j.created_at, j.started_at, j.finished_at, j.paused_at, j.expires_at,
           j.parent_job_id, j.parent_step_index, j.depth, j.round, j.stop_reason, j.conversation_id,
           j.in_message_flow, j.batch_id, j.batch_line, (
               SELECT l.custom_id FROM batch_lines l
               WHERE l.batch_id = j.batch_id AND l.line = j.batch_line AND l.tenant_id = j.tenant_id
           ), j.is_whole, w.is_wanted,
           p.source, p.body, p.errors,
           CASE WHEN j.is_whole AND j.round > 0 THEN (
               SELECT json_agg(json_build_object('round', l.round, 'source', l.source, 'body', l.body, 'errors', l.errors)
                               ORDER BY l.round)::text
               FROM plans l WHERE l.job_id = j.id AND l.round > 0
           ) END, s.steps,
           CASE WHEN j.is_whole AND j.budget IS NOT NULL THEN (
               SELECT (j.budget::jsonb || jsonb_build_object('used', jsonb_build_object(
                   'tokens', u.tokens::bigint, 'cost_usd', u.cost, 'model_calls', u.calls::bigint,
                   'steps', u.steps::bigint)))::text
               FROM planq_tree_used(coalesce(j.root_job_id, j.id), NULL, NULL) u
           ) END, j.retry,
           CASE WHEN j.retry IS NOT NULL AND j.stage_worker IS NULL THEN j.run_at END, q.questions::text
    FROM unnest(p_ids, p_tenants, p_wanted) AS w (id, tenant_id, is_wanted)
    CROSS JOIN LATERAL (
        SELECT *, w.is_wanted OR status = ANY (p_ended) AS is_whole,
               CASE WHEN stage_retry IS NOT NULL
                   THEN planq_present_retry(stage_retry, status, round, resumes)::text END AS retry
        FROM jobs WHERE id = w.id AND tenant_id = w.tenant_id OFFSET 0
    ) j
    CROSS JOIN LATERAL (
        SELECT CASE WHEN j.status = 'executing'
            THEN planq_open_questions(j.tenant_id, j.id, j.root_job_id) END AS questions
    ) q
    LEFT JOIN LATERAL (
        SELECT source, body::text AS body, errors::text AS errors FROM plans
        WHERE j.is_whole AND job_id = j.id AND round = 0 OFFSET 0
    ) p ON true
    CROSS JOIN LATERAL (
        SELECT json_agg(to_json(s))::text AS steps FROM (
            SELECT index, round, kind, tool_name, status, attempt, arguments, inputs, output,
                   encode(payload_hash, 'hex') AS payload_hash, output_bytes, excerpts, content, error, depends_on, reused_job,
                   reused_index, effect, recovery, CASE WHEN question_id IS NOT NULL
                       THEN (
                           SELECT json_build_object('id', q.id, 'kind', q.kind, 'message', q.message, 'schema', q.schema,
                                                    'url', q.url, 'details', q.details, 'due_at', wake_at)
                           FROM questions q WHERE q.id = question_id) END AS question,
                   started_at, finished_at,
                   CASE WHEN status = ANY (planq_step_ready()) THEN tool_away_since END AS tool_away_since,
                   CASE WHEN status = ANY (planq_step_running()) THEN progress END AS progress, cost_usd, worker_id
            FROM steps WHERE j.is_whole AND job_id = j.id ORDER BY index LIMIT p_steps
        ) s
    ) s;
END $$;

-- What a job and the jobs below it ask and nobody has answered, the oldest 100; null where there is nothing.
CREATE FUNCTION planq_open_questions(p_tenant text, p_job uuid, p_root uuid) RETURNS json LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT json_agg(json_build_object('id', o.id, 'job_id', o.job_id, 'step_index', o.step_index, 'kind', o.kind,
                                          'message', o.message) ORDER BY o.id)
        FROM (
            SELECT q.id, q.job_id, q.step_index, q.kind, q.message FROM questions q
            WHERE q.tenant_id = p_tenant AND q.root_job_id = coalesce(p_root, p_job) AND q.status = 'open'
              AND (p_root IS NULL OR q.job_id = p_job OR p_job = ANY (planq_lineage(q.job_id)))
            ORDER BY q.id LIMIT 100
        ) o);
END $$;
