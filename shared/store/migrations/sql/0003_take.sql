-- Transitions that take over what they make ready, many in one commit (release 0003). The specification is
-- shared/domain/advance.py; what they claim is claimed as in 0003_claims.sql, and anything else keeps its wake-up.
-- Items come as one JSON array in the order of their jobs' ids, in which the jobs are locked; texts in it hold JSON
-- (`output`, `steps`, ...), because functions that take JSON apart refuse \u0000. `take_steps` and `take_stage` are what
-- the caller of an item takes over; `p_lane` is the lane of all callers, `p_seconds` the longest that a stage may take.

-- The claim of a stage, and the event that tells of it.
CREATE TYPE planq_stage AS (claim json, attempt int, told planq_event);

-- Takes over the stage RESPOND, which has just become due, unless the job is paused; the caller holds the job's row and
-- stores the event. Returns nulls where there is nothing to be taken.
CREATE FUNCTION planq_take_stage(p_job uuid, p_worker uuid, p_seconds float8) RETURNS planq_stage LANGUAGE plpgsql AS $$
DECLARE
    v_responding CONSTANT text := 'responding';
    j record;
BEGIN
    UPDATE jobs SET stage_worker = p_worker, stage_attempt = stage_attempt + 1,
        deadline = now() + make_interval(secs => p_seconds), wake_at = NULL, wakes = 0
    WHERE id = p_job AND status = v_responding AND stage_worker IS NULL AND run_at <= now() AND paused_at IS NULL
    RETURNING tenant_id, stage_attempt INTO j;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN ROW(planq_stage_claim(p_job), j.stage_attempt, ROW(j.tenant_id, p_job, 'stage_started',
        json_build_object('stage', v_responding, 'attempt', j.stage_attempt))::planq_event)::planq_stage;
END $$;

-- The last step of a job has ended in success: opens RESPOND and takes it over, in one. The caller as above.
CREATE FUNCTION planq_close_and_take_stage(p_job uuid, p_worker uuid, p_seconds float8) RETURNS planq_stage
LANGUAGE plpgsql AS $$
DECLARE
    j record;
BEGIN
    UPDATE jobs SET open_steps = open_steps - 1, status = 'responding', open_questions = 0, stage_worker = p_worker,
        stage_attempt = stage_attempt + 1, deadline = now() + make_interval(secs => p_seconds), wake_at = NULL, wakes = 0
    WHERE id = p_job RETURNING tenant_id, stage_attempt INTO j;
    RETURN ROW(planq_stage_claim(p_job), j.stage_attempt, ROW(j.tenant_id, p_job, 'stage_started',
        json_build_object('stage', 'responding', 'attempt', j.stage_attempt))::planq_event)::planq_stage;
END $$;

-- Takes over what a transition has made ready: `p_moved` is what it returned, the caller holds the job's row.
-- Returns it with {taken: [claims], stage: claim}, the steps that were taken not in `ready` any more.
CREATE FUNCTION planq_take(
    p_moved json, p_job uuid, p_round int, p_lane text, p_steps int, p_stage boolean, p_worker uuid, p_seconds float8
) RETURNS json LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_mine int[];
    v_ready json[] := '{}';
    v_taken json[] := '{}';
    v_stage planq_stage;
    r record;
BEGIN
    IF NOT (p_moved->>'landed')::boolean OR (p_steps = 0 AND NOT p_stage) THEN
        RETURN p_moved;
    END IF;
    IF p_steps > 0 THEN
        SELECT array_agg(m.index) INTO v_mine FROM (
            SELECT t.index FROM json_to_recordset(p_moved->'ready') AS t (index int, lane text)
            WHERE t.lane = p_lane ORDER BY t.index LIMIT p_steps
        ) m;
        IF v_mine IS NOT NULL THEN
            SELECT coalesce(array_agg(c.claim), '{}') INTO v_taken
            FROM planq_claim_steps(p_job, p_round, v_mine, p_worker) c;
        END IF;
    END IF;
    FOR r IN SELECT t.value FROM json_array_elements(p_moved->'ready') t
             WHERE NOT EXISTS (SELECT FROM unnest(v_taken) c WHERE c->>'index' = t.value->>'index') LOOP
        v_ready := v_ready || r.value;
    END LOOP;
    IF p_stage AND p_moved->>'job_status' = 'responding' THEN
        v_stage := planq_take_stage(p_job, p_worker, p_seconds);
        IF v_stage.attempt IS NOT NULL THEN
            PERFORM planq_tell_all(ARRAY[v_stage.told]);
        END IF;
    END IF;
    RETURN json_build_object(
        'landed', true, 'status', p_moved->'status', 'job_status', p_moved->'job_status',
        'stage_attempt', coalesce(v_stage.attempt, (p_moved->>'stage_attempt')::int, 0),
        'ready', array_to_json(v_ready), 'taken', array_to_json(v_taken), 'stage', v_stage.claim);
END $$;

-- StepFailed, many times. Items: {n, job, round, index, attempt, error, retry_in, unsure, take_steps, take_stage}, the
-- time in seconds. Returns rows (n, moved), `moved` as planq_take does.
CREATE FUNCTION planq_fail_steps(p_items json, p_lane text, p_worker uuid, p_seconds float8)
RETURNS TABLE (n int, moved json) LANGUAGE sql AS $$
    SELECT i.n, planq_take(
        planq_finish_step(i.job, i.round, i.index, i.attempt, false, NULL, i.error::json,
                          make_interval(secs => i.retry_in), false, NULL, NULL, NULL, NULL, i.unsure),
        i.job, i.round, p_lane, i.take_steps, i.take_stage, p_worker, p_seconds)
    FROM json_to_recordset(p_items) AS i (
        n int, job uuid, round int, index int, attempt int, error text, retry_in float8, unsure boolean,
        take_steps int, take_stage boolean
    )
$$;

CREATE TYPE planq_outcome AS (
    n int, job uuid, round int, index int, attempt int, output text, hash text, bytes bigint, excerpts text,
    artifact text, take_steps int, take_stage boolean
);

-- Takes one dependency off a step that waits; the last one makes it ready, or it is claimed for `p_worker` at once, where
-- `p_takes` and it is of the lane and its time has come. Returns the step. The caller holds the job's row.
CREATE FUNCTION planq_unlock_one(
    p_job uuid, p_round int, p_index int, p_lane text, p_takes boolean, p_worker uuid
) RETURNS steps LANGUAGE plpgsql AS $$
DECLARE
    v_pending CONSTANT text := 'pending';
    r record;
    s steps;
BEGIN
    SELECT pending, p_takes AND lane = p_lane AND run_at <= now() AS is_taken INTO r FROM steps
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = v_pending;
    IF r.pending > 1 THEN
        UPDATE steps SET pending = pending - 1 WHERE job_id = p_job AND round = p_round AND index = p_index;
    ELSIF r.is_taken THEN
        UPDATE steps SET pending = 0, status = 'running', attempt = attempt + 1, worker_id = p_worker,
            started_at = coalesce(started_at, clock_timestamp()),
            deadline = now() + make_interval(secs => timeout_seconds)
        WHERE job_id = p_job AND round = p_round AND index = p_index RETURNING * INTO s;
    ELSIF r.pending = 1 THEN
        UPDATE steps SET pending = 0, status = 'ready', wake_at = now() + planq_wake_grace()
        WHERE job_id = p_job AND round = p_round AND index = p_index RETURNING * INTO s;
    END IF;
    RETURN s;
END $$;

-- Keeps what hangs on a large or structured output beside its step: its artifact, the reference to its payload.
CREATE FUNCTION planq_keep_outcome(
    p_tenant text, p_job uuid, p_index int, p_tool_name text, p_output json, p_hash bytea, p_artifact json
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_hash IS NOT NULL THEN
        PERFORM planq_touch_payload(p_tenant, p_hash);
    END IF;
    IF p_artifact IS NOT NULL THEN
        INSERT INTO artifacts (tenant_id, id, job_id, step_index, tool_name, skill_id, type, body, payload_hash)
        VALUES (p_tenant, p_artifact->>'id', p_job, p_index, p_tool_name, p_artifact->>'skill_id',
                p_artifact->>'type', p_output, p_hash)
        ON CONFLICT (tenant_id, id) DO UPDATE SET body = excluded.body, payload_hash = excluded.payload_hash,
            type = excluded.type, skill_id = excluded.skill_id, step_index = excluded.step_index,
            tool_name = excluded.tool_name
        WHERE artifacts.job_id = excluded.job_id;
    END IF;
END $$;

-- StepSucceeded, many times. Items are `planq_outcome`s; a large output comes as the hash of its payload (hexadecimal),
-- its size and its excerpts instead of `output`. Returns rows (n, moved) of those that landed, `moved` as planq_take does.
CREATE FUNCTION planq_succeed_steps(p_items json, p_lane text, p_worker uuid, p_seconds float8)
RETURNS TABLE (n int, moved json) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_waiting CONSTANT text := 'waiting';
    v_running CONSTANT text := 'running';
    i planq_outcome;
    j record;
    s record;
    t steps;
    v_index int;
    v_budget int;
    v_stage planq_stage;
    v_ready json[];
    v_taken json[];
    v_events planq_event[];
BEGIN
    FOR i IN SELECT * FROM json_populate_recordset(NULL::planq_outcome, p_items) LOOP
        SELECT status, round, open_steps, stage_attempt, paused_at IS NULL AND run_at <= now() AS is_free INTO j
        FROM jobs WHERE id = i.job FOR NO KEY UPDATE;
        CONTINUE WHEN NOT FOUND OR j.status NOT IN ('executing', 'input_required') OR j.round <> i.round;
        UPDATE steps SET
            status = 'succeeded', output = i.output::json, payload_hash = decode(i.hash, 'hex'),
            output_bytes = i.bytes, excerpts = i.excerpts::json, error = NULL, unsure = false,
            finished_at = clock_timestamp(), wake_at = NULL, wakes = 0, deadline = NULL
        WHERE job_id = i.job AND round = i.round AND index = i.index AND attempt = i.attempt
          AND (status = v_running OR (status = v_waiting AND question IS NULL))
        RETURNING tenant_id, tool_name, dependents INTO s;
        CONTINUE WHEN NOT FOUND;
        v_ready := '{}';
        v_taken := '{}';
        v_stage := NULL;
        v_budget := CASE WHEN j.is_free THEN i.take_steps ELSE 0 END;
        IF i.hash IS NOT NULL OR i.artifact IS NOT NULL THEN
            PERFORM planq_keep_outcome(s.tenant_id, i.job, i.index, s.tool_name, i.output::json,
                                       decode(i.hash, 'hex'), i.artifact::json);
        END IF;
        v_events := v_events || ROW(s.tenant_id, i.job, 'step_succeeded', json_build_object(
            'round', i.round, 'index', i.index, 'attempt', i.attempt, 'error', NULL))::planq_event;
        FOREACH v_index IN ARRAY s.dependents LOOP
            t := planq_unlock_one(i.job, i.round, v_index, p_lane, v_budget > 0, p_worker);
            IF t.status = 'running' THEN
                v_budget := v_budget - 1;
                v_taken := v_taken || planq_step_claim(t);
                v_events := v_events || planq_step_started(t);
            ELSIF t.status = 'ready' THEN
                v_ready := v_ready || json_build_object('index', t.index, 'lane', t.lane, 'tool_name', t.tool_name);
            END IF;
        END LOOP;
        IF j.open_steps > 1 THEN
            UPDATE jobs SET open_steps = open_steps - 1 WHERE id = i.job;
        ELSIF i.take_stage AND j.is_free THEN
            j.status := 'responding';
            v_stage := planq_close_and_take_stage(i.job, p_worker, p_seconds);
            v_events := v_events || v_stage.told;
        ELSE
            j.status := planq_close_steps(i.job, 1, 0);
        END IF;
        n := i.n;
        moved := json_build_object(
            'landed', true, 'status', 'succeeded', 'job_status', j.status,
            'stage_attempt', coalesce(v_stage.attempt, j.stage_attempt),
            'ready', array_to_json(v_ready), 'taken', array_to_json(v_taken), 'stage', v_stage.claim);
        RETURN NEXT;
    END LOOP;
    PERFORM planq_tell_all(v_events);
END $$;

