-- The round of a chained tool, and how a job with a structured output ends (release 0005).

-- ToolChained: from its stage, the job keeps what it has come to, and opens its next round with one step, which the
-- caller may take over. `p_step` is {tool_name, kind, lane, effect, arguments, retries, timeout_seconds, recovery}, its
-- arguments a text that holds JSON. Returns as planq_take does.
CREATE FUNCTION planq_chain_tool(
    p_job uuid, p_attempt int, p_output json, p_answer text, p_step json, p_calls json, p_lane text, p_steps int,
    p_worker uuid
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    j jobs;
    v_taken json[];
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    PERFORM planq_record_calls(p_job, p_calls);
    IF j.id IS NULL OR j.status NOT IN ('planning', 'responding') OR j.stage_worker IS NULL
       OR j.stage_attempt <> p_attempt THEN
        RETURN json_build_object('landed', false);
    END IF;
    UPDATE jobs SET round = round + 1, status = 'executing', output = p_output, answer = p_answer, stage_worker = NULL,
        open_steps = 1, failed_steps = 0, halt_index = NULL, wake_at = NULL, wakes = 0,
        deadline = coalesce(paused_at, now()) + make_interval(secs => (limits->>'plan_timeout_seconds')::float8)
    WHERE id = p_job;
    INSERT INTO plans (job_id, round, tenant_id, source, body) VALUES (p_job, j.round + 1, j.tenant_id, 'chained', NULL);
    INSERT INTO steps (job_id, round, index, tenant_id, kind, tool_name, lane, effect, status, arguments, retries,
                       timeout_seconds, recovery, wake_at)
    SELECT p_job, j.round + 1, 0, j.tenant_id, g.kind, g.tool_name, g.lane, g.effect, 'ready', g.arguments::json,
           g.retries, g.timeout_seconds, g.recovery, now() + planq_wake_grace()
    FROM json_to_record(p_step) AS g (
        kind text, tool_name text, lane text, effect text, arguments text, retries int, timeout_seconds float8,
        recovery text
    );
    PERFORM planq_tell(j.tenant_id, p_job, 'plan_accepted',
        json_build_object('round', j.round + 1, 'steps', 1, 'reused', 0, 'source', 'chained'));
    -- Not by planq_take, which takes claims apart: arguments may hold \u0000.
    IF p_steps > 0 AND p_step->>'lane' = p_lane THEN
        SELECT array_agg(c.claim) INTO v_taken FROM planq_claim_steps(p_job, j.round + 1, '{0}', p_worker) c;
    END IF;
    RETURN json_build_object(
        'landed', true, 'job_status', 'executing', 'stage_attempt', j.stage_attempt, 'taken', array_to_json(v_taken),
        'ready', CASE WHEN v_taken IS NULL THEN json_build_array(
            json_build_object('index', 0, 'lane', p_step->'lane', 'tool_name', p_step->'tool_name')) END);
END $$;

-- AnswerGiven, StageFailed: as planq_end_jobs for one job, with what an agent's job has beside its answer; nulls keep what
-- is stored. `p_messages` lists {kind, call_id, name, content}, the content a text that holds JSON. Returns whether it
-- landed.
CREATE FUNCTION planq_end_agent_job(p_job uuid, p_items json, p_output json, p_chained json, p_messages json)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM planq_end_jobs(p_items);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE jobs SET output = coalesce(p_output, output), chained = coalesce(p_chained, chained) WHERE id = p_job;
    INSERT INTO messages (tenant_id, job_id, kind, call_id, name, content)
    SELECT j.tenant_id, j.id, m.kind, m.call_id, m.name, m.content::json
    FROM json_to_recordset(p_messages) AS m (kind text, call_id text, name text, content text), jobs j WHERE j.id = p_job;
    RETURN true;
END $$;
