-- Stages that wait for their model without a worker (release 0012), and what a claim and a look at a job tell of that.

-- What is kept of a stage's failed tries, where they are of the stage at which the job stands now; else null.
--   p_retry {stage, round, resumes, tried: {tries, requests, seconds}, error}
CREATE FUNCTION planq_present_retry(p_retry json, p_status text, p_round int, p_resumes int) RETURNS json
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_retry->>'stage' = p_status AND (p_retry->>'round')::int = p_round
                 AND (p_retry->>'resumes')::int = p_resumes THEN p_retry END
$$;

-- StageRetried: the stage may be claimed again from `p_delay` on, or from the end of the job's time, if that is sooner.
-- Those of `p_calls` that failed count as one with the call that ends the stage: they are kept, and what they used is
-- added up, but they are no further calls.
CREATE FUNCTION planq_retry_stage(
    p_job uuid, p_attempt int, p_error json, p_delay interval, p_tried json, p_calls json
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j record;
    v_retried int;
BEGIN
    UPDATE jobs SET stage_worker = NULL, deadline = NULL, wakes = 0,
        run_at = least(now() + p_delay, expires_at), wake_at = least(now() + p_delay, expires_at),
        stage_retry = json_build_object(
            'stage', status, 'round', round, 'resumes', resumes, 'tried', p_tried, 'error', p_error)
    WHERE id = p_job AND status IN ('planning', 'responding') AND stage_worker IS NOT NULL
      AND stage_attempt = p_attempt
    RETURNING tenant_id, status, run_at INTO j;
    PERFORM planq_record_calls(p_job, p_calls);
    IF j.status IS NULL THEN
        RETURN false;
    END IF;
    UPDATE model_calls SET is_retried = true
    WHERE job_id = p_job AND call_id IN (
        SELECT c.id FROM json_to_recordset(p_calls) AS c (id uuid, error text) WHERE c.error IS NOT NULL);
    GET DIAGNOSTICS v_retried = ROW_COUNT;
    UPDATE jobs SET model_calls = model_calls - v_retried WHERE id = p_job;
    PERFORM planq_tell(j.tenant_id, p_job, 'stage_retrying', json_build_object(
        'stage', j.status, 'attempt', p_attempt, 'error', p_error, 'next_attempt_at', j.run_at));
    RETURN true;
END $$;

-- As in 0005, with the failures of its model that a stage has tried again after, and the time that the job has left.
CREATE OR REPLACE FUNCTION planq_stage_claim(p_job uuid) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    j record;
    p record;
BEGIN
    SELECT tenant_id, status, round, stage_attempt, model, input, tools, limits, forked_from, user_id, trace_id,
           conversation_id, stage_retry, resumes, extract(epoch FROM expires_at - now())::float8 AS time_left,
           agent_name IS NOT NULL OR parent_job_id IS NOT NULL OR round > 0 OR budget IS NOT NULL AS has_family INTO j
    FROM jobs WHERE id = p_job;
    SELECT source, errors, reuse,
           CASE WHEN j.status = 'planning' OR source NOT IN ('caller', 'model') THEN body END AS body INTO p
    FROM plans WHERE job_id = p_job AND round = j.round;
    RETURN json_build_object(
        'job_id', p_job, 'tenant_id', j.tenant_id, 'status', j.status, 'round', j.round, 'attempt', j.stage_attempt,
        'model', j.model, 'input', j.input, 'tools', j.tools, 'limits', j.limits, 'forked_from', j.forked_from,
        'user_id', j.user_id, 'trace_id', j.trace_id, 'conversation_id', j.conversation_id,
        'time_left', j.time_left, 'tried', CASE WHEN j.stage_retry IS NOT NULL
            THEN planq_present_retry(j.stage_retry, j.status, j.round, j.resumes)->'tried' END,
        'plan_source', p.source, 'plan_errors', p.errors, 'plan_reuse', p.reuse, 'plan_body', p.body,
        'family', CASE WHEN j.has_family THEN planq_stage_family(p_job) END,
        'results', CASE WHEN j.status = 'responding' AND p.errors IS NULL THEN planq_results(p_job, j.round) END);
END $$;

-- As in 0010, with `stage_retry` where the stage at which the job stands has failed for its model and is tried again: as
-- it is kept; `next_attempt_at` is there while it waits.
DROP FUNCTION planq_view_jobs(uuid[], text[], boolean[], text[], int);
CREATE FUNCTION planq_view_jobs(p_ids uuid[], p_tenants text[], p_wanted boolean[], p_ended text[], p_steps int)
RETURNS TABLE (
    id uuid, tenant_id text, status text, strategy text, input text, answer text, error text, model_calls int,
    input_tokens bigint, output_tokens bigint, cost_usd numeric, created_at timestamptz, started_at timestamptz,
    finished_at timestamptz, paused_at timestamptz, expires_at timestamptz, forked_from uuid, metadata text,
    agent_name text, agent_version int, action text, parent_job_id uuid, parent_step_index int, depth int, output text,
    chained text, round int, is_whole boolean, is_wanted boolean, plan_body text, plan_errors text, steps text,
    budget text, user_id text, stage_retry text, next_attempt_at timestamptz
) LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT j.id, j.tenant_id, j.status, j.strategy, j.input, j.answer, j.error, j.model_calls, j.input_tokens,
           j.output_tokens, j.cost_usd, j.created_at, j.started_at, j.finished_at, j.paused_at, j.expires_at,
           j.forked_from, j.metadata, j.agent_name, j.agent_version, j.action, j.parent_job_id, j.parent_step_index,
           j.depth, j.output, j.chained, j.round, j.is_whole, w.is_wanted, p.body, p.errors, s.steps,
           CASE WHEN j.is_whole AND j.limits_of_tree IS NOT NULL THEN (
               SELECT (j.limits_of_tree || jsonb_build_object('used', jsonb_build_object(
                   'tokens', u.tokens::bigint, 'cost_usd', u.cost, 'model_calls', u.calls::bigint,
                   'steps', u.steps::bigint)))::text
               FROM planq_tree_used(coalesce(j.root_job_id, j.id)) u
           ) END, j.user_id, j.stage_retry,
           CASE WHEN j.stage_retry IS NOT NULL AND j.stage_worker IS NULL THEN j.run_at END
    FROM unnest(p_ids, p_tenants, p_wanted) AS w (id, tenant_id, is_wanted)
    CROSS JOIN LATERAL (
        SELECT id, tenant_id, status, strategy, input, answer, error::text AS error, model_calls, input_tokens,
               output_tokens, cost_usd, created_at, started_at, finished_at, paused_at, expires_at, forked_from,
               metadata::text AS metadata, agent_name, agent_version, action, parent_job_id, parent_step_index, depth,
               output::text AS output, chained::text AS chained, budget::jsonb AS limits_of_tree, root_job_id, round, user_id,
               w.is_wanted OR status = ANY (p_ended) AS is_whole, stage_worker, run_at,
               CASE WHEN stage_retry IS NOT NULL
                   THEN planq_present_retry(stage_retry, status, round, resumes)::text END AS stage_retry
        FROM jobs WHERE id = w.id AND tenant_id = w.tenant_id OFFSET 0
    ) j
    LEFT JOIN LATERAL (
        SELECT body::text AS body, errors::text AS errors FROM plans
        WHERE j.is_whole AND job_id = j.id AND round = j.round OFFSET 0
    ) p ON true
    CROSS JOIN LATERAL (
        SELECT json_agg(to_json(s))::text AS steps FROM (
            SELECT index, kind, tool_name, status, attempt, arguments, inputs, output,
                   encode(payload_hash, 'hex') AS payload_hash, output_bytes, excerpts, error, depends_on, reused_job,
                   reused_index, effect, recovery, question, started_at, finished_at
            FROM steps WHERE j.is_whole AND job_id = j.id AND round = j.round ORDER BY index LIMIT p_steps
        ) s
    ) s;
END $$;
