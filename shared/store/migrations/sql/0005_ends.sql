-- How steps end that have child jobs (release 0005): what has begun for them ends in the same commit.

-- As in 0002, with the children of a step that has ended.
CREATE OR REPLACE FUNCTION planq_finish_step(
    p_job uuid, p_round int, p_index int, p_attempt int, p_succeeded boolean, p_output json, p_error json,
    p_retry_in interval, p_lost boolean, p_artifact json, p_hash bytea, p_bytes bigint, p_excerpts json,
    p_unsure boolean
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    s steps%ROWTYPE;
    v_skipped int := 0;
    v_ready json := '[]';
    v_status text;
    v_job_status text;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status NOT IN ('executing', 'input_required') OR j.round <> p_round THEN
        RETURN json_build_object('landed', false);
    END IF;
    v_status := CASE
        WHEN p_succeeded THEN 'succeeded'
        WHEN p_retry_in IS NOT NULL AND coalesce(p_index < j.halt_index, true) THEN 'ready'
        ELSE 'failed' END;
    UPDATE steps SET
        status = v_status,
        output = CASE WHEN p_succeeded THEN p_output END,
        payload_hash = CASE WHEN p_succeeded THEN p_hash END,
        output_bytes = CASE WHEN p_succeeded THEN p_bytes END,
        excerpts = CASE WHEN p_succeeded THEN p_excerpts END,
        error = CASE WHEN p_succeeded THEN NULL ELSE p_error END,
        unsure = v_status = 'ready' AND p_unsure,
        finished_at = CASE WHEN v_status <> 'ready' THEN clock_timestamp() END,
        run_at = CASE WHEN v_status = 'ready' THEN now() + p_retry_in ELSE run_at END,
        wake_at = CASE WHEN v_status = 'ready' THEN now() + p_retry_in END,
        wakes = 0,
        worker_losses = worker_losses + CASE WHEN p_lost THEN 1 ELSE 0 END,
        worker_id = CASE WHEN v_status = 'ready' THEN NULL ELSE worker_id END,
        deadline = NULL
    WHERE job_id = p_job AND round = p_round AND index = p_index AND attempt = p_attempt
      AND (status = 'running' OR (status = 'waiting' AND question IS NULL AND p_succeeded))
    RETURNING * INTO s;
    IF NOT FOUND THEN
        RETURN json_build_object('landed', false);
    END IF;
    IF s.payload_hash IS NOT NULL THEN
        PERFORM planq_touch_payload(j.tenant_id, s.payload_hash);
    END IF;
    IF s.children IS NOT NULL AND v_status <> 'ready' THEN
        PERFORM planq_drop_children(s.children);
    END IF;
    PERFORM planq_tell(j.tenant_id, p_job, CASE v_status WHEN 'ready' THEN 'step_retrying' ELSE 'step_' || v_status END,
        json_build_object('round', p_round, 'index', p_index, 'attempt', p_attempt, 'error', p_error));
    IF v_status = 'ready' THEN
        RETURN json_build_object('landed', true, 'status', v_status, 'job_status', j.status, 'ready', v_ready);
    END IF;
    IF v_status = 'failed' THEN
        v_skipped := planq_skip_after(p_job, p_round, p_index);
        UPDATE jobs SET halt_index = least(halt_index, p_index) WHERE id = p_job;
    ELSE
        IF p_artifact IS NOT NULL THEN
            INSERT INTO artifacts (tenant_id, id, job_id, step_index, tool_name, skill_id, type, body, payload_hash)
            VALUES (j.tenant_id, p_artifact->>'id', p_job, p_index, s.tool_name, p_artifact->>'skill_id',
                    p_artifact->>'type', p_output, p_hash)
            ON CONFLICT (tenant_id, id) DO UPDATE SET body = excluded.body, payload_hash = excluded.payload_hash,
                type = excluded.type, skill_id = excluded.skill_id, step_index = excluded.step_index,
                tool_name = excluded.tool_name
            WHERE artifacts.job_id = excluded.job_id;
        END IF;
        IF cardinality(s.dependents) > 0 THEN
            v_ready := planq_unlock(p_job, p_round, s.dependents);
        END IF;
    END IF;
    v_job_status := planq_close_steps(p_job, 1 + v_skipped, CASE WHEN v_status = 'failed' THEN 1 ELSE 0 END);
    RETURN json_build_object('landed', true, 'status', v_status, 'job_status', v_job_status,
        'stage_attempt', j.stage_attempt, 'ready', v_ready);
END $$;

-- As in 0002, with the children of all steps.
CREATE OR REPLACE FUNCTION planq_expire_plan(p_job uuid, p_error json) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    v_closed int;
    v_failed int;
    v_children uuid[];
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status NOT IN ('executing', 'input_required') OR j.paused_at IS NOT NULL
       OR j.deadline IS NULL OR j.deadline > now() THEN
        RETURN false;
    END IF;
    WITH closed AS (
        UPDATE steps SET
            status = CASE status WHEN 'pending' THEN 'skipped' ELSE 'failed' END,
            error = CASE status WHEN 'pending' THEN NULL ELSE p_error END,
            output = NULL,
            question = NULL,
            finished_at = clock_timestamp(),
            wake_at = NULL,
            deadline = NULL
        WHERE job_id = p_job AND round = j.round AND status IN ('pending', 'ready', 'running', 'waiting')
        RETURNING steps.status, steps.children
    )
    SELECT count(*), count(*) FILTER (WHERE closed.status = 'failed'),
           (SELECT array_agg(c) FROM closed d CROSS JOIN LATERAL unnest(d.children) AS c)
    INTO v_closed, v_failed, v_children FROM closed;
    IF v_children IS NOT NULL THEN
        PERFORM planq_drop_children(v_children);
    END IF;
    PERFORM planq_close_steps(p_job, v_closed, v_failed);
    PERFORM planq_tell(j.tenant_id, p_job, 'plan_expired', p_error);
    RETURN true;
END $$;

-- StepSucceeded, of a step that has gathered. What becomes ready the caller claims for itself; RESPOND it may take over.
-- Returns as planq_take does.
CREATE FUNCTION planq_finish_gathered(
    p_job uuid, p_round int, p_index int, p_attempt int, p_output json, p_artifact json, p_hash bytea, p_bytes bigint,
    p_excerpts json, p_stage boolean, p_worker uuid, p_seconds float8
) RETURNS json LANGUAGE sql AS $$
    SELECT planq_take(
        planq_finish_step(p_job, p_round, p_index, p_attempt, true, p_output, NULL, NULL, false, p_artifact, p_hash,
                          p_bytes, p_excerpts, false),
        p_job, p_round, 'io', 0, p_stage, p_worker, p_seconds)
$$;
