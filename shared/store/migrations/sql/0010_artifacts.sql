-- Versions of artifacts, and what a step keeps beside its output (release 0010).

-- Adds an artifact of a step, as the next version of its id: {id, skill_id, type, metadata}, the last as JSON in a text,
-- for reading JSON that holds the character NUL is an error. Whoever adds a version of the same id at the same moment
-- waits for the other, and gets the one after it.
CREATE FUNCTION planq_add_artifact(
    p_tenant text, p_job uuid, p_index int, p_tool_name text, p_artifact json, p_body json, p_hash bytea
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOOP
        INSERT INTO artifacts (tenant_id, id, version, job_id, step_index, tool_name, skill_id, type, metadata, body,
                               payload_hash)
        SELECT p_tenant, p_artifact->>'id', coalesce(max(a.version), 0) + 1, p_job, p_index, p_tool_name,
               p_artifact->>'skill_id', p_artifact->>'type', (p_artifact->>'metadata')::json, p_body,
               p_hash
        FROM artifacts a WHERE a.tenant_id = p_tenant AND a.id = p_artifact->>'id'
        ON CONFLICT (tenant_id, id, version) DO NOTHING;
        EXIT WHEN FOUND;
    END LOOP;
END $$;

-- As in 0003. `p_artifact` has an `id` where the output itself is an artifact; what is kept beside the output stands in
-- its `beside`: as `p_artifact`, with its own `body` (JSON in a text) or `hash` (hexadecimal).
CREATE OR REPLACE FUNCTION planq_keep_outcome(
    p_tenant text, p_job uuid, p_index int, p_tool_name text, p_output json, p_hash bytea, p_artifact json
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_beside json := p_artifact->'beside';
    v_hash bytea := decode(v_beside->>'hash', 'hex');
BEGIN
    IF p_hash IS NOT NULL THEN
        PERFORM planq_touch_payload(p_tenant, p_hash);
    END IF;
    IF p_artifact->>'id' IS NOT NULL THEN
        PERFORM planq_add_artifact(p_tenant, p_job, p_index, p_tool_name, p_artifact, p_output, p_hash);
    END IF;
    IF v_hash IS NOT NULL THEN
        PERFORM planq_touch_payload(p_tenant, v_hash);
    END IF;
    IF v_beside->>'id' IS NOT NULL THEN
        PERFORM planq_add_artifact(p_tenant, p_job, p_index, p_tool_name, v_beside, (v_beside->>'body')::json, v_hash);
    END IF;
END $$;

-- As in 0005, with artifacts kept by `planq_keep_outcome`.
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
    IF s.payload_hash IS NOT NULL AND p_artifact IS NULL THEN
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
            PERFORM planq_keep_outcome(j.tenant_id, p_job, p_index, s.tool_name, p_output, p_hash, p_artifact);
        END IF;
        IF cardinality(s.dependents) > 0 THEN
            v_ready := planq_unlock(p_job, p_round, s.dependents);
        END IF;
    END IF;
    v_job_status := planq_close_steps(p_job, 1 + v_skipped, CASE WHEN v_status = 'failed' THEN 1 ELSE 0 END);
    RETURN json_build_object('landed', true, 'status', v_status, 'job_status', v_job_status,
        'stage_attempt', j.stage_attempt, 'ready', v_ready);
END $$;
