-- Transitions of steps in release 0002. The specification is shared/domain/advance.py.

-- PlanAccepted: stores the plan and its steps. Texts in `p_steps` hold JSON (`arguments`, `wanted`), because functions
-- that take JSON apart refuse \u0000. A step with `reuse_job` takes over the outcome of that job's step `reuse_index`.
-- Returns {landed, job_status, ready: [{index, lane, tool_name}]}; when an outcome to take over is gone, nothing lands and
-- `gone` says so.
CREATE OR REPLACE FUNCTION planq_accept_plan(
    p_job uuid, p_attempt int, p_source text, p_body json, p_steps json, p_timeout interval, p_calls json
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    v_open int;
    v_wanted int;
    v_reused int;
    v_status text;
    v_ready json;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    PERFORM planq_record_calls(p_job, p_calls);
    IF j.id IS NULL OR j.status <> 'planning' OR j.stage_worker IS NULL OR j.stage_attempt <> p_attempt THEN
        RETURN json_build_object('landed', false);
    END IF;
    -- Retention may be deleting the source at this moment: wait for that, and let it wait for us.
    PERFORM FROM jobs WHERE id IN (SELECT g.reuse_job FROM json_to_recordset(p_steps) AS g (reuse_job uuid)) FOR KEY SHARE;
    SELECT count(*), count(o.index) INTO v_wanted, v_reused
    FROM json_to_recordset(p_steps) AS g (reuse_job uuid, reuse_index int)
    LEFT JOIN (jobs src JOIN steps o ON o.job_id = src.id AND o.round = src.round AND o.status = 'succeeded')
        ON src.id = g.reuse_job AND src.tenant_id = j.tenant_id AND o.index = g.reuse_index
    WHERE g.reuse_job IS NOT NULL;
    IF v_reused < v_wanted THEN
        RETURN json_build_object('landed', false, 'gone', true);
    END IF;
    INSERT INTO plans (job_id, round, tenant_id, source, body)
    VALUES (j.id, j.round, j.tenant_id, p_source, p_body)
    ON CONFLICT (job_id, round) DO UPDATE SET source = excluded.source, body = excluded.body;
    WITH given AS (
        SELECT * FROM json_to_recordset(p_steps) AS s (
            index int, kind text, tool_name text, lane text, effect text, arguments text, inputs int[],
            depends_on int[], dependents int[], retries int, timeout_seconds float8, recovery text, wanted text,
            reuse_job uuid, reuse_index int
        )
    ), done AS (
        SELECT coalesce(array_agg(g.index), '{}') AS indices FROM given g WHERE g.reuse_job IS NOT NULL
    ), placed AS (
        SELECT g.*, CASE WHEN v_wanted = 0 THEN cardinality(g.depends_on) ELSE (
            SELECT count(*)::int FROM unnest(g.depends_on) d WHERE d <> ALL (done.indices)
        ) END AS pending
        FROM given g, done
    ), new_steps AS (
        INSERT INTO steps (job_id, round, index, tenant_id, kind, tool_name, lane, effect, status, arguments, inputs,
                           depends_on, dependents, pending, retries, timeout_seconds, wake_at, recovery, wanted,
                           reused_job, reused_index, origin_job, origin_index, output, payload_hash, output_bytes,
                           excerpts, finished_at)
        SELECT j.id, j.round, g.index, j.tenant_id, g.kind, g.tool_name, g.lane, g.effect,
               CASE WHEN g.reuse_job IS NOT NULL THEN 'succeeded' WHEN g.pending = 0 THEN 'ready' ELSE 'pending' END,
               g.arguments::json, g.inputs, g.depends_on, g.dependents, g.pending, g.retries, g.timeout_seconds,
               CASE WHEN g.reuse_job IS NULL AND g.pending = 0 THEN now() + planq_wake_grace() END,
               coalesce(g.recovery, 'fail'), g.wanted::json, g.reuse_job, g.reuse_index,
               coalesce(o.origin_job, g.reuse_job), coalesce(o.origin_index, g.reuse_index),
               o.output, o.payload_hash, o.output_bytes, o.excerpts,
               CASE WHEN g.reuse_job IS NOT NULL THEN clock_timestamp() END
        FROM placed g
        LEFT JOIN jobs src ON src.id = g.reuse_job
        LEFT JOIN steps o ON o.job_id = src.id AND o.round = src.round AND o.index = g.reuse_index
        RETURNING steps.index, steps.lane, steps.tool_name, steps.status
    )
    SELECT count(*) FILTER (WHERE n.status <> 'succeeded'), coalesce(
        json_agg(json_build_object('index', n.index, 'lane', n.lane, 'tool_name', n.tool_name) ORDER BY n.index)
            FILTER (WHERE n.status = 'ready'), '[]')
    INTO v_open, v_ready FROM new_steps n;
    IF v_reused > 0 THEN
        PERFORM planq_touch_payload(j.tenant_id, s.payload_hash) FROM steps s
        WHERE s.job_id = j.id AND s.round = j.round AND s.payload_hash IS NOT NULL;
    END IF;
    v_status := CASE WHEN v_open = 0 THEN 'responding' ELSE 'executing' END;
    UPDATE jobs SET status = v_status, stage_worker = NULL, open_steps = v_open, failed_steps = 0, halt_index = NULL,
        deadline = CASE WHEN v_open > 0 THEN coalesce(j.paused_at, now()) + p_timeout END,
        wake_at = CASE WHEN v_open = 0 THEN now() + planq_wake_grace() END, wakes = 0
    WHERE id = j.id;
    PERFORM planq_tell(j.tenant_id, j.id, 'plan_accepted',
        json_build_object('round', j.round, 'steps', v_open + v_reused, 'reused', v_reused));
    RETURN json_build_object('landed', true, 'job_status', v_status, 'stage_attempt', j.stage_attempt, 'ready', v_ready);
END $$;

-- StepSucceeded, StepFailed: stores the outcome of an attempt, unlocks dependents or skips what had not begun.
-- A large output comes as the hash of its payload, its size and its excerpts instead of `p_output`. With `p_retry_in` a
-- failed step becomes ready again after that time, unless an earlier step has failed for good; `p_unsure` then says that
-- the attempt may have taken effect. Returns {landed, status, job_status, ready: [{index, lane, tool_name}]}.
CREATE FUNCTION planq_finish_step(
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

-- The same for workers of the release before.
CREATE OR REPLACE FUNCTION planq_finish_step(
    p_job uuid, p_round int, p_index int, p_attempt int, p_succeeded boolean, p_output json, p_error json,
    p_retry_in interval, p_lost boolean, p_artifact json
) RETURNS json LANGUAGE sql AS $$
    SELECT planq_finish_step(p_job, p_round, p_index, p_attempt, p_succeeded, p_output, p_error, p_retry_in, p_lost,
                             p_artifact, NULL, NULL, NULL, false)
$$;

-- StepSuspended: the step waits for a timer and will succeed with `p_output`; the wait counts against neither the plan's
-- time nor the job's. Returns whether it landed.
CREATE OR REPLACE FUNCTION planq_suspend_step(
    p_job uuid, p_round int, p_index int, p_attempt int, p_delay interval, p_output json
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status NOT IN ('executing', 'input_required') THEN
        RETURN false;
    END IF;
    UPDATE steps SET status = 'waiting', output = p_output, wake_at = now() + p_delay, worker_id = NULL,
        deadline = NULL
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = 'running' AND attempt = p_attempt;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE jobs SET deadline = deadline + p_delay, expires_at = expires_at + p_delay WHERE id = p_job;
    PERFORM planq_tell(j.tenant_id, p_job, 'step_waiting',
        json_build_object('round', p_round, 'index', p_index, 'seconds', extract(epoch FROM p_delay)));
    RETURN true;
END $$;

-- StepReleased: a worker that stops gives a running step back, so that another one continues at once; after an earlier
-- step has failed for good it is skipped instead. Its time begins anew with the next attempt. Returns as planq_finish_step does; the caller publishes `ready`.
CREATE FUNCTION planq_hand_back_step(p_job uuid, p_round int, p_index int, p_attempt int) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    s steps%ROWTYPE;
    v_skips boolean;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status NOT IN ('executing', 'input_required') OR j.round <> p_round THEN
        RETURN json_build_object('landed', false);
    END IF;
    v_skips := coalesce(p_index > j.halt_index, false);
    UPDATE steps SET status = CASE WHEN v_skips THEN 'skipped' ELSE 'ready' END, run_at = now(), wakes = 0,
        wake_at = CASE WHEN NOT v_skips THEN now() + planq_wake_grace() END,
        finished_at = CASE WHEN v_skips THEN clock_timestamp() END,
        worker_id = NULL, deadline = NULL, releases = releases + 1, started_at = NULL, asked_at = NULL
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = 'running' AND attempt = p_attempt
    RETURNING * INTO s;
    IF NOT FOUND THEN
        RETURN json_build_object('landed', false);
    END IF;
    PERFORM planq_tell(j.tenant_id, p_job, 'step_released',
        json_build_object('round', p_round, 'index', p_index, 'attempt', p_attempt));
    IF v_skips THEN
        RETURN json_build_object('landed', true, 'status', s.status, 'ready', '[]'::json,
            'stage_attempt', j.stage_attempt,
            'job_status', planq_close_steps(p_job, 1 + planq_skip_after(p_job, p_round, p_index), 0));
    END IF;
    RETURN json_build_object('landed', true, 'status', s.status, 'job_status', j.status,
        'ready', json_build_array(json_build_object('index', s.index, 'lane', s.lane, 'tool_name', s.tool_name)));
END $$;

-- StepAsked: a call was cut off, and a person has to say whether it took effect. The job's limit bounds the wait, which
-- counts against neither the plan's time nor the job's; while the job is paused the wait has not begun.
-- Returns whether it landed.
CREATE FUNCTION planq_ask_step(
    p_job uuid, p_round int, p_index int, p_attempt int, p_error json, p_question json, p_lost boolean
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    v_wait interval;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status NOT IN ('executing', 'input_required') OR j.round <> p_round THEN
        RETURN false;
    END IF;
    v_wait := make_interval(secs => coalesce((j.limits->>'human_wait_seconds')::float8, 86400));
    UPDATE steps SET status = 'waiting', question = p_question, asked_at = now(), error = p_error,
        wake_at = coalesce(j.paused_at, now()) + v_wait, worker_id = NULL, deadline = NULL,
        worker_losses = worker_losses + CASE WHEN p_lost THEN 1 ELSE 0 END
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = 'running' AND attempt = p_attempt;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE jobs SET status = 'input_required', open_questions = open_questions + 1, deadline = deadline + v_wait,
        expires_at = expires_at + v_wait
    WHERE id = p_job;
    PERFORM planq_tell(j.tenant_id, p_job, 'step_asking',
        json_build_object('round', p_round, 'index', p_index, 'attempt', p_attempt, 'error', p_error));
    RETURN true;
END $$;

-- The same as handing back, for workers of the release before.
CREATE OR REPLACE FUNCTION planq_release_step(p_job uuid, p_round int, p_index int, p_attempt int) RETURNS boolean
LANGUAGE sql AS $$
    SELECT (planq_hand_back_step(p_job, p_round, p_index, p_attempt)->>'landed')::boolean
$$;
