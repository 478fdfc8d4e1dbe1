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

-- PlanAccepted, many times. Items: {n, job, attempt, source, body, steps, open, reuses, seconds, calls, spent,
-- take_steps, take_stage, ready}. `open` counts the steps whose outcome is not taken over
-- from another job, `reuses` says whether there are others: those with `reuse_job` have the outcome of that job's step
-- `reuse_index`. `pending` says for how many steps without an outcome each one waits; those that are `taken` the caller
-- takes over as far as it can run them, `take_steps` says whether there are any. `seconds` is the time that the plan gets, or, where further rounds
-- are planned (`after_steps`), all rounds together; `spent` is the sum of `calls`. `on_failure` says what a failed step does.
-- Steps with a `known` status have ended so, with `error`; of those with `output_of` the output is that of an earlier
-- step of the job; `copies` says whether there are any. `reply` is what the model said; `answer`, `output` and
-- `stop_reason`, where there are any, are what the job ends with after these steps. A guide is a plan without steps; where
-- it could not be written, `errors` says why. `ignored` are the places of what means nothing in a model's plan.
-- `ready` counts the open steps that wait for nothing, each of which says its `place` among them; what is beyond the
-- window is held. With `has_run` there are steps that the caller has run ahead of their plan: they have succeeded with `output`, as their
-- first attempts, in `seconds`, `ago` seconds before the last of them. Such an item applies only to a job that is free.
-- Returns rows (n, result) of those that applied, `result` as planq_take does but without `ready`: that are the steps that
-- wait for nothing, those within `places` where the job has a window. The caller records the calls of the others.
-- Where an outcome to take over is gone, {applied: false, gone: true}.
CREATE FUNCTION planq_accept_plans(p_items json, p_worker uuid, p_seconds float8)
RETURNS TABLE (n int, result json) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_planning CONSTANT text := 'planning';
    v_accepted planq_accepted[];
    v_calls planq_called[];
    v_is_rare boolean;
    v_taken planq_step_ref[];
    v_stages planq_taken_stage[];
    v_ends planq_closed[];
BEGIN
    WITH given AS (
        SELECT i.*, i.open = 0 AND i.after_steps = 'completed' AS ends, i.open = 0 AND i.after_steps = 'planning' AS is_guide,
            CASE WHEN i.open > planq_least_window()
                THEN (SELECT planq_places(o.priority) FROM jobs o WHERE o.id = i.job) END AS places
        FROM json_to_recordset(p_items) AS i (
            n int, job uuid, attempt int, source text, body text, steps text, open int, reuses boolean,
            seconds float8, calls text, spent planq_spent, take_steps boolean, take_stage boolean, after_steps text, on_failure text, copies boolean, reply text,
            answer text, output text, stop_reason text, incomplete text, errors text, ignored text, ready int,
            cached planq_cached, made json, has_run boolean
        ) WHERE i.n BETWEEN 0 AND 9999
    ), accepted AS (
        UPDATE jobs j SET
            -- All has ended, and no stage follows: one step counts as open until what it all came to is stored.
            status = CASE WHEN i.open > 0 OR i.ends THEN 'executing' ELSE i.after_steps END,
            after_steps = i.after_steps, on_failure = i.on_failure,
            round = j.round + i.is_guide::int,
            stage_worker = NULL, open_steps = i.open + i.ends::int, failed_steps = 0, halt_index = NULL,
            places = i.places,
            out_steps = CASE WHEN i.places IS NOT NULL THEN least(i.ready, i.places) END,
            held_steps = greatest(i.ready - i.places, 0),
            deadline = CASE WHEN i.open > 0 OR i.ends THEN coalesce(
                CASE WHEN i.after_steps = v_planning THEN j.rounds_deadline END,
                coalesce(j.paused_at, planq_now()) + make_interval(secs => i.seconds)) END,
            rounds_deadline = CASE WHEN i.is_guide THEN coalesce(
                j.rounds_deadline, coalesce(j.paused_at, planq_now()) + make_interval(secs => i.seconds)) END,
            answer = coalesce(i.answer, j.answer), output = coalesce(i.output::json, j.output),
            stop_reason = coalesce(i.stop_reason, j.stop_reason), incomplete = i.incomplete::json,
            wake_at = CASE WHEN i.open = 0 AND NOT i.ends THEN planq_now() + planq_wake_grace() END, wakes = 0,
            (model_calls, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd)
                = (SELECT * FROM planq_with_spent(j, i.spent))
        FROM given i
        WHERE j.id = i.job AND j.status = v_planning AND j.stage_worker = p_worker AND j.stage_attempt = i.attempt
          AND (i.has_run IS NULL OR j.paused_at IS NULL AND j.run_at <= planq_now())
          AND CASE WHEN i.reuses THEN planq_has_outcomes(j.tenant_id, i.steps::json) ELSE true END
        RETURNING i.*, j.tenant_id, j.round - i.is_guide::int AS round, j.status, j.stage_attempt,
            j.paused_at IS NULL AND j.run_at <= planq_now() AS is_free
    ), planned AS (
        -- A caller's plan is there already.
        INSERT INTO plans AS p (job_id, round, tenant_id, source, body, reply, errors)
        SELECT job, round, tenant_id, source, body::json, reply::json, errors::json FROM accepted
        ON CONFLICT (job_id, round) DO UPDATE
            SET source = excluded.source, body = excluded.body, reply = excluded.reply, errors = excluded.errors
            WHERE (p.source, p.body::text) IS DISTINCT FROM (excluded.source, excluded.body::text)
    ), told AS (
        INSERT INTO events (tenant_id, job_id, kind, data)
        SELECT tenant_id, job, CASE WHEN errors IS NULL THEN 'plan_accepted' ELSE 'guide_failed' END,
            json_strip_nulls(json_build_object(
                'round', round, 'steps', json_array_length(steps::json), 'ignored', ignored::json,
                'reused', CASE WHEN reuses THEN json_array_length(steps::json) - open ELSE 0 END))
        FROM accepted
    )
    SELECT array_agg(ROW(n, job, tenant_id, round, steps::json, status, stage_attempt, is_free, places,
            ends, take_stage AND is_free AND open = 0, reuses, copies, made, cached)::planq_accepted),
        array_agg(ROW(tenant_id, job, round, calls::json)::planq_called) FILTER (WHERE calls IS NOT NULL),
        bool_or(made IS NOT NULL OR reuses OR copies OR open = 0)
    INTO v_accepted, v_calls, v_is_rare FROM accepted;
    IF v_calls IS NOT NULL THEN
        PERFORM planq_insert_calls(v_calls);
    END IF;
    v_taken := planq_insert_steps(v_accepted, p_worker);
    IF v_is_rare THEN
        PERFORM planq_add_made(a.tenant, a.job, a.made) FROM unnest(v_accepted) a WHERE a.made IS NOT NULL ORDER BY a.job;
        PERFORM planq_take_over_outcomes(a.job, a.round, a.steps) FROM unnest(v_accepted) a WHERE a.reuses ORDER BY a.job;
        PERFORM planq_copy_outputs(a.job, a.steps) FROM unnest(v_accepted) a WHERE a.copies ORDER BY a.job;
        v_ends := ARRAY(SELECT ROW(a.n, a.job, planq_end_with_steps(a.job, 0), NULL, NULL)::planq_closed
                        FROM unnest(v_accepted) a WHERE a.ends ORDER BY a.job);
        v_stages := ARRAY(SELECT s FROM planq_take_stages((
            SELECT coalesce(json_agg(json_build_object('n', a.n, 'job', a.job, 'cached', a.cached) ORDER BY a.job), '[]')
            FROM unnest(v_accepted) a WHERE a.takes_stage AND NOT a.ends), p_worker, p_seconds) s);
    END IF;
    RETURN QUERY SELECT a.n, json_build_object(
        'applied', true, 'job_status', coalesce(e.status, a.status), 'stage_attempt', coalesce(s.attempt, a.attempt),
        'taken', coalesce(t.claims, '[]'), 'stage', s.claim, 'places', a.places)
    FROM unnest(v_accepted) a
    LEFT JOIN (SELECT c.job, json_agg(c.claim) AS claims FROM planq_step_claims(v_taken) c GROUP BY c.job) t ON t.job = a.job
    LEFT JOIN unnest(v_stages) s ON s.n = a.n
    LEFT JOIN unnest(v_ends) e ON e.n = a.n;
    IF coalesce(cardinality(v_accepted), 0) < json_array_length(p_items) THEN
        RETURN QUERY SELECT i.n, '{"applied": false, "gone": true}'::json
        FROM json_to_recordset(p_items) AS i (n int, job uuid, attempt int, reuses boolean)
        CROSS JOIN LATERAL (
            SELECT FROM jobs WHERE id = i.job AND status = v_planning AND stage_worker = p_worker AND stage_attempt = i.attempt OFFSET 0
        ) j
        WHERE i.reuses;
    END IF;
END $$;

-- Stores the steps of rounds. Those that are `taken` begin in `p_worker` (null: in none), as far as it can run them and their job
-- is free; those with an `output` have run there; those whose `place` is beyond the `places` of a job with a window are held. Returns those that begin.
CREATE FUNCTION planq_insert_steps(p_plans planq_accepted[], p_worker uuid) RETURNS planq_step_ref[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now CONSTANT timestamptz := planq_clock();
    v_taken planq_step_ref[];
BEGIN
    WITH stored AS (
        INSERT INTO steps AS s (
            job_id, round, index, tenant_id, kind, tool_name, pool, effect, status, arguments, inputs,
            depends_on, dependents, pending, path, retry, timeout_seconds, recovery, wanted, verbatim, is_known,
            output, error, finished_at, wake_at, attempt, worker_id, started_at, deadline, tool_digest, longest_seconds)
        SELECT g.job, g.round, g.index, g.tenant, g.kind, g.tool_name, g.pool, g.effect,
               CASE WHEN g.known IS NOT NULL THEN g.known WHEN g.has_run THEN 'succeeded' WHEN g.pending > 0 THEN 'pending'
                    WHEN g.is_taken THEN 'running' ELSE 'ready' END,
               g.arguments::json, g.inputs, g.depends_on, g.dependents, g.pending, g.path, g.retry, g.timeout_seconds,
               g.recovery, g.wanted::json, g.verbatim, g.known IS NOT NULL, g.output::json, g.error::json,
               CASE WHEN g.known IS NOT NULL THEN v_now WHEN g.has_run THEN v_now - make_interval(secs => g.ago) END,
               CASE WHEN g.pending = 0 AND NOT (g.is_taken OR g.has_run OR g.is_held) AND g.known IS NULL
                    THEN planq_now() + planq_wake_grace() END,
               (g.is_taken OR g.has_run)::int,
               CASE WHEN g.is_taken OR g.has_run THEN p_worker END,
               CASE WHEN g.is_taken THEN v_now WHEN g.has_run THEN v_now - make_interval(secs => g.ago + g.seconds) END,
               CASE WHEN g.is_taken THEN planq_now() + make_interval(secs => g.timeout_seconds) END, g.digest,
               g.longest_seconds
        FROM (
            SELECT a.job, a.round, a.tenant, r.*, r.output IS NOT NULL AS has_run, coalesce(r.place > a.places, false) AS is_held,
                r.taken AND a.is_free AND p_worker IS NOT NULL AND coalesce(r.place <= a.places, true)
                    AND planq_can_run(p_worker, r.pool, r.tool_name, r.digest) AS is_taken
            FROM unnest(p_plans) a CROSS JOIN LATERAL json_to_recordset(a.steps) AS r (
                index int, place int, kind text, tool_name text, pool text, effect text, arguments text, inputs int[],
                depends_on int[], dependents int[], pending int, path int, retry json, timeout_seconds float8,
                recovery text, wanted text, taken boolean, verbatim boolean, known text, error text, digest text,
                longest_seconds float8, output text, seconds float8, ago float8
            )
            OFFSET 0
        ) g
        RETURNING s.job_id, s.tenant_id, s.round, s.index, s.attempt, s.tool_name, s.finished_at IS NULL AS runs
    ), told AS (
        INSERT INTO events (tenant_id, job_id, kind, data)
        SELECT s.tenant_id, s.job_id, k.kind, CASE k.kind WHEN 'step_started'
            THEN planq_start_told(s.round, s.index, s.attempt, s.tool_name, p_worker) ELSE planq_success_told(s.round, s.index, s.attempt) END
        FROM stored s JOIN (VALUES ('step_started'), ('step_succeeded')) k (kind) ON k.kind = 'step_started' OR NOT s.runs
        WHERE s.attempt > 0 ORDER BY s.job_id, s.index, k.kind
    )
    SELECT array_agg(ROW(NULL, job_id, round, index, 0)::planq_step_ref ORDER BY job_id, index) FILTER (WHERE attempt > 0 AND runs)
    INTO v_taken FROM stored;
    RETURN v_taken;
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
    WHERE id = i.job AND status = 'planning' AND stage_worker = p_worker AND stage_attempt = i.attempt
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
    WHERE id = i.job AND status IN ('planning', 'responding') AND stage_worker = p_worker
      AND stage_attempt = i.attempt
    RETURNING tenant_id, round, stage_attempt INTO j;
    IF NOT FOUND THEN
        RETURN json_build_object('applied', false);
    END IF;
    IF i.made IS NOT NULL THEN
        PERFORM planq_add_made(j.tenant_id, i.job, i.made);
    END IF;
    INSERT INTO plans (job_id, round, tenant_id, source, body) VALUES (i.job, j.round, j.tenant_id, 'chained', NULL);
    PERFORM planq_insert_steps(ARRAY[ROW(
        NULL, i.job, j.tenant_id, j.round, json_build_array(i.step), NULL, NULL, false, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    )::planq_accepted], NULL);
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
