-- Plan: the stage PLAN ends with a plan that is accepted or refused, and a chained tool opens a round of its own.
--
-- planq_accept_plans     stores plans with their steps (planq_insert_steps), in one commit, and takes over what may begin at once
--   planq_take_over_outcomes  gives the steps of a fork the outcomes that they reuse, if planq_has_outcomes
--   planq_copy_outputs    gives a step that repeats an earlier call the output of that one
-- planq_refuse_plan      keeps a plan with its defects; the job goes on to RESPOND
-- planq_chain_tool       opens the next round with one step
--
-- Items come as one JSON array in the order of their jobs' ids, in which the jobs are locked; texts in it hold JSON
-- (`output`, `steps`, ...), because functions that take JSON apart refuse \u0000. `take_steps` and `take_stage` are what
-- the caller of an item takes over, `cached` the rounds of the job that it has; `p_pool` is the pool of all callers, `p_seconds` the
-- longest that a stage may take.

-- PlanAccepted, many times. Items: {n, job, attempt, source, body, steps, open, reuses, seconds, calls, spent_calls,
-- spent_input, spent_output, spent_read, spent_write, spent_usd, take_steps, take_stage, ready}. `open` counts the steps whose outcome is not taken over
-- from another job, `reuses` says whether there are others: those with `reuse_job` have the outcome of that job's step
-- `reuse_index`. `pending` says for how many steps without an outcome each one waits; those that are `taken` the caller
-- takes over as far as it can run them, `take_steps` says whether there are any. `seconds` is the time that the plan gets, or, where further rounds
-- are planned (`after_steps`), all rounds together; `spent_*` sum `calls` up. `on_failure` says what a failed step does.
-- Steps with a `known` status have ended so, with `error`; of those with `output_of` the output is that of an earlier
-- step of the job; `copies` says whether there are any. `reply` is what the model said; `answer`, `output` and
-- `stop_reason`, where there are any, are what the job ends with after these steps. A guide is a plan without steps; where
-- it could not be written, `errors` says why. `ignored` are the places of what means nothing in a model's plan.
-- `ready` counts the open steps that wait for nothing, each of which says its `place` among them; what is beyond the
-- window is held. `first_index` is that of the plan's first step.
-- Returns rows (n, result) of those that applied, `result` as planq_take does but without `ready`: that are the steps that
-- wait for nothing, those within `places` where the job has a window.
-- Where an outcome to take over is gone, {applied: false, gone: true}.
CREATE FUNCTION planq_accept_plans(p_items json, p_worker uuid, p_seconds float8)
RETURNS TABLE (n int, result json) LANGUAGE plpgsql AS $$
DECLARE
    i record;
    j record;
    s steps;
    v_planning CONSTANT text := 'planning';
    v_running CONSTANT text[] := planq_step_running();
    v_steps json;
    v_places int;
    v_ends boolean;
    v_end planq_event;
    v_stage planq_stage;
    v_taken json[];
    v_events planq_event[];
BEGIN
    FOR i IN SELECT * FROM json_to_recordset(p_items) AS a (
        n int, job uuid, attempt int, source text, body text, steps text, open int, reuses boolean,
        seconds float8, calls text, spent_calls int, spent_input bigint, spent_output bigint,
        spent_read bigint, spent_write bigint, spent_usd numeric,
        take_steps boolean, take_stage boolean, after_steps text, on_failure text, copies boolean, reply text,
        answer text, output text, stop_reason text, incomplete text, errors text, ignored text, ready int,
        cached planq_cached, first_index int, made json
    ) LOOP
        v_places := CASE WHEN i.open > planq_least_window()
            THEN (SELECT planq_places(o.priority) FROM jobs o WHERE o.id = i.job) END;
        v_steps := i.steps::json;
        -- All has ended, and no stage follows: one step counts as open until what it all came to is stored.
        v_ends := i.open = 0 AND i.after_steps = 'completed';
        n := i.n;
        IF i.reuses THEN
            SELECT tenant_id INTO j FROM jobs WHERE id = i.job AND status = v_planning AND stage_worker IS NOT NULL
              AND stage_attempt = i.attempt FOR NO KEY UPDATE;
            IF FOUND AND NOT planq_has_outcomes(j.tenant_id, v_steps) THEN
                PERFORM planq_record_calls(i.job, i.calls::json);
                result := '{"applied": false, "gone": true}';
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;
        UPDATE jobs SET
            status = CASE WHEN i.open > 0 OR v_ends THEN 'executing' ELSE i.after_steps END,
            after_steps = i.after_steps, on_failure = i.on_failure,
            round = round + CASE WHEN i.open = 0 AND i.after_steps = v_planning THEN 1 ELSE 0 END,
            stage_worker = NULL, open_steps = i.open + v_ends::int, failed_steps = 0, halt_index = NULL,
            places = v_places,
            out_steps = CASE WHEN v_places IS NOT NULL THEN least(i.ready, v_places) END,
            held_steps = greatest(i.ready - v_places, 0),
            deadline = CASE WHEN i.open > 0 OR v_ends THEN coalesce(
                CASE WHEN i.after_steps = v_planning THEN rounds_deadline END,
                coalesce(paused_at, planq_now()) + make_interval(secs => i.seconds)) END,
            rounds_deadline = CASE WHEN i.open = 0 AND i.after_steps = v_planning THEN coalesce(
                rounds_deadline, coalesce(paused_at, planq_now()) + make_interval(secs => i.seconds)) END,
            answer = coalesce(i.answer, answer), output = coalesce(i.output::json, output),
            stop_reason = coalesce(i.stop_reason, stop_reason), incomplete = i.incomplete::json,
            wake_at = CASE WHEN i.open = 0 AND NOT v_ends THEN planq_now() + planq_wake_grace() END, wakes = 0,
            model_calls = model_calls + coalesce(i.spent_calls, 0),
            input_tokens = input_tokens + coalesce(i.spent_input, 0),
            output_tokens = output_tokens + coalesce(i.spent_output, 0),
            cache_read_tokens = cache_read_tokens + coalesce(i.spent_read, 0),
            cache_write_tokens = cache_write_tokens + coalesce(i.spent_write, 0),
            cost_usd = CASE WHEN i.spent_usd IS NULL THEN cost_usd ELSE coalesce(cost_usd, 0) + i.spent_usd END
        WHERE id = i.job AND status = v_planning AND stage_worker IS NOT NULL AND stage_attempt = i.attempt
        RETURNING tenant_id, round - CASE status WHEN v_planning THEN 1 ELSE 0 END AS round, status, stage_attempt,
            paused_at IS NULL AND run_at <= planq_now() AS is_free INTO j;
        IF NOT FOUND THEN
            PERFORM planq_record_calls(i.job, i.calls::json);
            CONTINUE;
        END IF;
        IF i.calls IS NOT NULL THEN
            PERFORM planq_insert_calls(ARRAY[ROW(j.tenant_id, i.job, j.round, i.calls::json)::planq_called]);
        END IF;
        IF i.made IS NOT NULL THEN
            PERFORM planq_add_made(j.tenant_id, i.job, i.made);
        END IF;
        -- A caller's plan is there already.
        PERFORM FROM plans WHERE job_id = i.job AND round = j.round AND source = i.source AND body::text = i.body;
        IF NOT FOUND THEN
            INSERT INTO plans (job_id, round, tenant_id, source, body, reply, errors)
            VALUES (i.job, j.round, j.tenant_id, i.source, i.body::json, i.reply::json, i.errors::json)
            ON CONFLICT (job_id, round) DO UPDATE
                SET source = excluded.source, body = excluded.body, reply = excluded.reply, errors = excluded.errors;
        END IF;
        PERFORM planq_insert_steps(i.job, j.round, j.tenant_id, v_steps, CASE WHEN j.is_free THEN p_worker END, v_places);
        IF i.reuses THEN
            PERFORM planq_take_over_outcomes(i.job, j.round, v_steps);
        END IF;
        IF i.copies THEN
            PERFORM planq_copy_outputs(i.job, v_steps);
        END IF;
        v_events := v_events || ROW(j.tenant_id, i.job, CASE WHEN i.errors IS NULL THEN 'plan_accepted' ELSE 'guide_failed' END, json_strip_nulls(json_build_object(
            'round', j.round, 'steps', json_array_length(v_steps), 'ignored', i.ignored::json,
            'reused', CASE WHEN i.reuses THEN json_array_length(v_steps) - i.open ELSE 0 END)))::planq_event;
        v_taken := '{}';
        v_stage := NULL;
        IF v_ends THEN
            v_end := planq_end_with_steps(i.job, 0);
            v_events := v_events || v_end;
            j.status := planq_status_told(v_end);
        ELSIF j.is_free AND i.take_steps THEN
            FOR s IN SELECT * FROM steps WHERE job_id = i.job AND index >= i.first_index AND round = j.round
                     AND status = ANY (v_running) ORDER BY index LOOP
                v_taken := v_taken || planq_step_claim(s);
                v_events := v_events || planq_step_started(s);
            END LOOP;
        ELSIF j.is_free AND i.take_stage AND i.open = 0 THEN
            v_stage := planq_take_stage(i.job, ARRAY['planning', 'responding'], p_worker, p_seconds, i.cached);
            v_events := v_events || v_stage.event;
        END IF;
        result := json_build_object(
            'applied', true, 'job_status', j.status,
            'stage_attempt', coalesce(v_stage.attempt, j.stage_attempt),
            'taken', array_to_json(v_taken), 'stage', v_stage.claim, 'places', v_places);
        RETURN NEXT;
    END LOOP;
    PERFORM planq_append_events(v_events);
END $$;

-- Stores the steps of a round. Those that are `taken` begin in `p_worker` (null: in none), as far as it can run them; those whose
-- `place` is beyond the `p_places` of a job with a window are held.
CREATE FUNCTION planq_insert_steps(
    p_job uuid, p_round int, p_tenant text, p_steps json, p_worker uuid, p_places int
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now CONSTANT timestamptz := planq_clock();
BEGIN
    INSERT INTO steps (job_id, round, index, tenant_id, kind, tool_name, pool, effect, status, arguments, inputs,
                       depends_on, dependents, pending, path, retry, timeout_seconds, recovery, wanted, verbatim, is_known,
                       error, finished_at, wake_at, attempt, worker_id, started_at, deadline, tool_digest,
                       longest_seconds)
    SELECT p_job, p_round, g.index, p_tenant, g.kind, g.tool_name, g.pool, g.effect,
           CASE WHEN g.known IS NOT NULL THEN g.known WHEN g.pending > 0 THEN 'pending'
                WHEN g.is_taken THEN 'running' ELSE 'ready' END,
           g.arguments::json, g.inputs, g.depends_on, g.dependents, g.pending, g.path, g.retry, g.timeout_seconds,
           g.recovery, g.wanted::json, g.verbatim, g.known IS NOT NULL, g.error::json,
           CASE WHEN g.known IS NOT NULL THEN v_now END,
           CASE WHEN g.pending = 0 AND NOT g.is_taken AND g.known IS NULL AND NOT g.is_held
                THEN planq_now() + planq_wake_grace() END,
           CASE WHEN g.is_taken THEN 1 ELSE 0 END,
           CASE WHEN g.is_taken THEN p_worker END,
           CASE WHEN g.is_taken THEN v_now END,
           CASE WHEN g.is_taken THEN planq_now() + make_interval(secs => g.timeout_seconds) END, g.digest,
           g.longest_seconds
    FROM (
        SELECT r.*, coalesce(r.place > p_places, false) AS is_held,
            r.taken AND p_worker IS NOT NULL AND coalesce(r.place <= p_places, true)
                AND planq_can_run(p_worker, r.pool, r.tool_name, r.digest) AS is_taken
        FROM json_to_recordset(p_steps) AS r (
            index int, place int, kind text, tool_name text, pool text, effect text, arguments text, inputs int[],
            depends_on int[], dependents int[], pending int, path int, retry json, timeout_seconds float8,
            recovery text, wanted text, taken boolean, verbatim boolean, known text, error text, digest text,
            longest_seconds float8
        )
    ) g;
END $$;

-- Whether the outcomes that a fork's steps take over are all there; the caller holds the fork's row. Until the commit no
-- retention removes them: it waits for the key lock, or passes the job over.
CREATE FUNCTION planq_has_outcomes(p_tenant text, p_steps json) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM jobs WHERE tenant_id = p_tenant
      AND id IN (SELECT g.reuse_job FROM json_to_recordset(p_steps) AS g (reuse_job uuid))
    ORDER BY id FOR KEY SHARE;
    RETURN NOT EXISTS (
        SELECT FROM json_to_recordset(p_steps) AS g (reuse_job uuid, reuse_index int)
        LEFT JOIN (jobs src JOIN steps o ON o.job_id = src.id AND o.status = 'succeeded')
            ON src.id = g.reuse_job AND src.tenant_id = p_tenant AND o.index = g.reuse_index
        WHERE g.reuse_job IS NOT NULL AND o.index IS NULL
    );
END $$;

-- Gives the steps of a fork's plan the outcomes that they take over.
CREATE FUNCTION planq_take_over_outcomes(p_job uuid, p_round int, p_steps json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE steps s SET status = 'succeeded', reused_job = g.reuse_job, reused_index = g.reuse_index,
        origin_job = coalesce(o.origin_job, g.reuse_job), origin_index = coalesce(o.origin_index, g.reuse_index),
        output = o.output, payload_hash = o.payload_hash, output_bytes = o.output_bytes, excerpts = o.excerpts,
        content = o.content, wake_at = NULL, finished_at = planq_clock()
    FROM json_to_recordset(p_steps) AS g (index int, reuse_job uuid, reuse_index int)
    JOIN jobs src ON src.id = g.reuse_job
    JOIN steps o ON o.job_id = src.id AND o.index = g.reuse_index
    WHERE s.job_id = p_job AND s.round = p_round AND s.index = g.index AND src.tenant_id = s.tenant_id;
    PERFORM planq_touch_payload(k.tenant_id, k.payload_hash) FROM (
        SELECT DISTINCT tenant_id, payload_hash FROM steps
        WHERE job_id = p_job AND round = p_round AND payload_hash IS NOT NULL ORDER BY tenant_id, payload_hash
    ) k;
END $$;

-- Gives the steps with `output_of` the output of that earlier step of the job.
CREATE FUNCTION planq_copy_outputs(p_job uuid, p_steps json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE steps s SET output = o.output, payload_hash = o.payload_hash, output_bytes = o.output_bytes,
        excerpts = o.excerpts, content = o.content
    FROM json_to_recordset(p_steps) AS g (index int, output_of int)
    JOIN steps o ON o.job_id = p_job AND o.index = g.output_of
    WHERE s.job_id = p_job AND s.index = g.index;
    PERFORM planq_touch_payload(k.tenant_id, k.payload_hash) FROM (
        SELECT DISTINCT s.tenant_id, s.payload_hash
        FROM json_to_recordset(p_steps) AS g (index int, output_of int)
        JOIN steps s ON s.job_id = p_job AND s.index = g.index
        WHERE g.output_of IS NOT NULL AND s.payload_hash IS NOT NULL ORDER BY 1, 2
    ) k;
END $$;

-- PlanRefused: keeps the plan with its defects; the job goes on to RESPOND, which the caller may take over, or fails with
-- `error` where no model is to answer. `p_item` is {job, attempt, source, body, errors, error, calls, take_stage}, where
-- `body`, `errors`, `error` and `calls` are texts that hold JSON.
-- Returns as planq_take does.
CREATE FUNCTION planq_refuse_plan(p_item json, p_worker uuid, p_seconds float8) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    i record;
    j record;
BEGIN
    SELECT * INTO i FROM json_to_record(p_item) AS a (
        job uuid, attempt int, source text, body text, errors text, error text, calls text, take_stage boolean
    );
    PERFORM planq_record_calls(i.job, i.calls::json);
    UPDATE jobs SET stage_worker = NULL, deadline = NULL, wakes = 0,
        status = CASE respond WHEN 'model' THEN 'responding' ELSE 'failed' END,
        wake_at = CASE respond WHEN 'model' THEN planq_now() + planq_wake_grace() END,
        error = CASE WHEN respond <> 'model' THEN i.error::json END,
        finished_at = CASE WHEN respond <> 'model' THEN planq_clock() END,
        paused_at = CASE respond WHEN 'model' THEN paused_at END
    WHERE id = i.job AND status = 'planning' AND stage_worker IS NOT NULL AND stage_attempt = i.attempt
    RETURNING tenant_id, round, status INTO j;
    IF NOT FOUND THEN
        RETURN json_build_object('applied', false);
    END IF;
    INSERT INTO plans (job_id, round, tenant_id, source, body, errors)
    VALUES (i.job, j.round, j.tenant_id, i.source, i.body::json, i.errors::json)
    ON CONFLICT (job_id, round) DO UPDATE SET source = excluded.source, body = excluded.body, errors = excluded.errors;
    PERFORM planq_append_event(j.tenant_id, i.job, 'plan_refused', i.errors::json);
    IF j.status = 'failed' THEN
        PERFORM planq_append_event(j.tenant_id, i.job, 'job_failed', planq_end_told('failed', i.error::json));
        PERFORM pg_notify('planq_ended', i.job::text);
    END IF;
    RETURN planq_take(
        json_build_object('applied', true, 'job_status', j.status, 'stage_attempt', i.attempt, 'ready', '[]'::json),
        i.job, j.round, 'io', 0, i.take_stage, p_worker, p_seconds, NULL);
END $$;

-- ToolChained: from its stage, the job keeps what it has come to, and opens its next round with one step, which the
-- caller may take over. `p_item` is {job, attempt, output, answer, stop_reason, incomplete, calls, take_steps, step, made}, where
-- `output`, `incomplete` and `calls` are texts that hold JSON, `step` is as planq_insert_steps takes it, and `made` as in
-- planq_end_jobs. Returns as planq_take does.
CREATE FUNCTION planq_chain_tool(p_item json, p_pool text, p_worker uuid) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    i record;
    j record;
    s steps;
    v_taken json[];
BEGIN
    SELECT * INTO i FROM json_to_record(p_item) AS a (
        job uuid, attempt int, output text, answer text, calls text, take_steps int, step json, stop_reason text,
        incomplete text, made json
    );
    PERFORM planq_record_calls(i.job, i.calls::json);
    UPDATE jobs SET round = round + 1, status = 'executing', after_steps = 'responding', on_failure = 'answer',
        output = i.output::json, answer = i.answer, stop_reason = coalesce(i.stop_reason, stop_reason),
        incomplete = coalesce(i.incomplete::json, incomplete),
        stage_worker = NULL, open_steps = 1, failed_steps = 0, halt_index = NULL, wake_at = NULL, wakes = 0,
        deadline = coalesce(paused_at, planq_now()) + make_interval(secs => (limits->>'plan_timeout_seconds')::float8)
    WHERE id = i.job AND status IN ('planning', 'responding') AND stage_worker IS NOT NULL
      AND stage_attempt = i.attempt
    RETURNING tenant_id, round, stage_attempt INTO j;
    IF NOT FOUND THEN
        RETURN json_build_object('applied', false);
    END IF;
    IF i.made IS NOT NULL THEN
        PERFORM planq_add_made(j.tenant_id, i.job, i.made);
    END IF;
    INSERT INTO plans (job_id, round, tenant_id, source, body) VALUES (i.job, j.round, j.tenant_id, 'chained', NULL);
    PERFORM planq_insert_steps(i.job, j.round, j.tenant_id, json_build_array(i.step), NULL, NULL);
    SELECT * INTO s FROM steps WHERE job_id = i.job AND round = j.round;
    PERFORM planq_append_event(j.tenant_id, i.job, 'plan_accepted',
        json_build_object('round', j.round, 'steps', 1, 'reused', 0, 'source', 'chained'));
    IF i.take_steps > 0 AND s.pool = p_pool THEN
        SELECT array_agg(c.claim) INTO v_taken FROM planq_claim_steps(i.job, j.round, ARRAY[s.index], p_worker) c;
    END IF;
    RETURN json_build_object(
        'applied', true, 'job_status', 'executing', 'stage_attempt', j.stage_attempt, 'taken', array_to_json(v_taken),
        'ready', CASE WHEN v_taken IS NULL THEN json_build_array(
            json_build_object('index', s.index, 'pool', s.pool, 'tool_name', s.tool_name)) END);
END $$;
