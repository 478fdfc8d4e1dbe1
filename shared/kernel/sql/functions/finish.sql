-- Finish: one attempt at a step ends, in one commit that is fenced by the attempt's number.
--
-- planq_succeed_steps   the hot path: many steps have succeeded (planq_succeed_step, planq_succeed_unit); what waits for each may
--                       begin (planq_unlock_steps), and the last one of a round ends it (planq_end_round)
-- planq_fail_steps      many have failed: each is tried again, or fails and skips what it halts, or what needs its output
-- planq_finish_step     one end of one step, for all that is not on the hot path
--
-- Lock order everywhere: the job's row first, then its steps. Claims lock a single step and never wait for a job. Every
-- transition is one round trip, guarded by the state and the attempt it expects, and says whether it applied; its
-- executable specification is a pure model that property tests hold equal to it. Items are as in plan.sql.

-- StepSucceeded, many times, each followed by the rest of its unit. Items are `planq_outcome`s without an error. Returns rows
-- (n, result) of those that applied, `result` as planq_take does with {steps: how many have succeeded}.
CREATE FUNCTION planq_succeed_steps(p_items json, p_pool text, p_worker uuid, p_seconds float8)
RETURNS TABLE (n int, result json) LANGUAGE plpgsql AS $$
DECLARE
    v_running CONSTANT text[] := planq_step_running();
    i planq_outcome;
    j record;
    s steps;
    u steps;
    f planq_unlocked;
    e planq_round_end;
    v_steps int;
    v_was_out int;
    v_events planq_event[];
    v_may_be_lost boolean := true;
BEGIN
    FOR i IN SELECT * FROM json_populate_recordset(NULL::planq_outcome, p_items) LOOP
        SELECT status, round, open_steps, stage_attempt, places - out_steps AS room, held_steps,
            paused_at IS NULL AND run_at <= planq_now() AS is_free INTO j
        FROM jobs WHERE id = i.job FOR NO KEY UPDATE;
        CONTINUE WHEN NOT FOUND OR j.status <> 'executing' OR j.round <> i.round;
        v_was_out := 0;
        IF j.room IS NOT NULL THEN
            SELECT count(*) INTO v_was_out FROM steps WHERE job_id = i.job AND index = i.index AND status = ANY (v_running);
        END IF;
        s := planq_succeed_step(i);
        CONTINUE WHEN s.job_id IS NULL;
        v_steps := 1;
        v_may_be_lost := v_may_be_lost AND s.effect = 'pure' AND s.children IS NULL;
        v_events := v_events || planq_step_succeeded(s);
        IF i.unit IS NOT NULL AND j.is_free THEN
            FOR u IN SELECT * FROM planq_succeed_unit(s, i.unit, p_pool, p_worker) LOOP
                s := u;
                v_steps := v_steps + 1;
                v_events := v_events || planq_step_started(s) || planq_step_succeeded(s);
            END LOOP;
        END IF;
        f := planq_unlock_steps(i.job, i.round, s.dependents, NULL, j.room + v_was_out, j.held_steps,
                                ROW(p_pool, CASE WHEN j.is_free THEN i.take_steps ELSE 0 END, p_worker)::planq_takes);
        v_events := v_events || f.events;
        e := NULL;
        IF j.open_steps <> v_steps THEN
            UPDATE jobs SET open_steps = open_steps - v_steps, out_steps = out_steps - v_was_out + f.out_steps,
                held_steps = held_steps + f.held_steps
            WHERE id = i.job;
        ELSE
            e := planq_end_round(i.job, v_steps, 0, CASE WHEN i.take_stage AND j.is_free THEN p_worker END, p_seconds, i.cached);
            v_events := v_events || e.events;
        END IF;
        v_may_be_lost := v_may_be_lost AND f.is_pure AND coalesce(e.status IN ('planning', 'responding'), true);
        n := i.n;
        result := json_build_object(
            'applied', true, 'status', 'succeeded', 'job_status', coalesce(e.status, j.status), 'steps', v_steps,
            'stage_attempt', coalesce((e.stage).attempt, j.stage_attempt),
            'ready', array_to_json(f.ready), 'taken', array_to_json(f.taken), 'stage', (e.stage).claim);
        RETURN NEXT;
    END LOOP;
    PERFORM planq_append_events(v_events);
    IF v_may_be_lost THEN
        PERFORM planq_flush_later();
    END IF;
END $$;

-- A step succeeds that runs, or waits for a timer or for its child jobs. `unit_seconds` of the time up to now belong to the other
-- steps of its unit. Returns the step, nulls where the attempt is over. The caller holds the job's row, stores the event, and counts
-- the step off.
CREATE FUNCTION planq_succeed_step(i planq_outcome) RETURNS steps LANGUAGE plpgsql AS $$
DECLARE
    v_running CONSTANT text[] := planq_step_running();
    v_waiting CONSTANT text[] := planq_step_waiting();
    s steps;
BEGIN
    UPDATE steps SET
        status = 'succeeded', output = i.output::json, payload_hash = decode(i.hash, 'hex'),
        output_bytes = i.bytes, excerpts = i.excerpts::json, error = NULL, in_doubt = false,
        finished_at = greatest(started_at, planq_clock() - make_interval(secs => coalesce(i.unit_seconds, 0))),
        wake_at = NULL, wakes = 0, deadline = NULL
    WHERE job_id = i.job AND round = i.round AND index = i.index AND attempt = i.attempt
      AND (status = ANY (v_running) OR (status = ANY (v_waiting) AND question_id IS NULL AND (waits_for IS NULL OR joined)))
    RETURNING * INTO s;
    IF s.job_id IS NOT NULL AND (i.hash IS NOT NULL OR i.artifact IS NOT NULL) THEN
        PERFORM planq_keep_outcome(s.tenant_id, i.job, i.index, s.tool_name, s.output, s.payload_hash, i.artifact::json);
    END IF;
    RETURN s;
END $$;

-- The event of a step that has succeeded.
CREATE FUNCTION planq_step_succeeded(s steps) RETURNS planq_event LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ROW(s.tenant_id, s.job_id, 'step_succeeded', planq_success_told(s.round, s.index, s.attempt))::planq_event;
END $$;

-- The rest of a unit whose step `s` has succeeded: `p_unit` lists {index, output, artifact, seconds} of the steps that ran after it,
-- each the only one that waits for the one before, and waits for nothing else. Each is claimed and succeeds in one write, as its
-- first attempt, up to the first one that cannot be claimed: it was skipped, say. Returns them. The caller holds the job's row,
-- which is not paused, stores the events, and counts the steps off.
CREATE FUNCTION planq_succeed_unit(s steps, p_unit json, p_pool text, p_worker uuid) RETURNS SETOF steps LANGUAGE plpgsql AS $$
DECLARE
    v_pending CONSTANT text[] := planq_step_pending();
    v_before steps := s;
    v_next steps;
    u record;
BEGIN
    FOR u IN SELECT * FROM json_to_recordset(p_unit) AS u (index int, output text, artifact text, seconds float8) LOOP
        EXIT WHEN v_before.dependents <> ARRAY[u.index];
        UPDATE steps SET
            status = 'succeeded', pending = 0, attempt = 1, worker_id = p_worker, output = u.output::json,
            started_at = v_before.finished_at,
            finished_at = least(planq_clock(), v_before.finished_at + make_interval(secs => u.seconds))
        WHERE job_id = s.job_id AND round = s.round AND index = u.index AND status = ANY (v_pending) AND pending = 1
          AND attempt = 0 AND pool = p_pool
        RETURNING * INTO v_next;
        EXIT WHEN NOT FOUND;
        IF u.artifact IS NOT NULL THEN
            PERFORM planq_keep_outcome(s.tenant_id, s.job_id, u.index, v_next.tool_name, v_next.output, NULL, u.artifact::json);
        END IF;
        RETURN NEXT v_next;
        v_before := v_next;
    END LOOP;
END $$;

-- StepFailed, many times. Items are `planq_outcome`s with an `error`; `anew` says that the step's child jobs have failed
-- and that it delegates again. Returns rows (n, result), `result` as planq_take does.
CREATE FUNCTION planq_fail_steps(p_items json, p_pool text, p_worker uuid, p_seconds float8)
RETURNS TABLE (n int, result json) LANGUAGE plpgsql AS $$
DECLARE
    v_jobs uuid[];
BEGIN
    -- Ends of child jobs change the deadlines above: of all these jobs the rows are locked in one order then.
    SELECT array_agg(i.job) INTO v_jobs FROM json_populate_recordset(NULL::planq_outcome, p_items) i
    HAVING bool_or(EXISTS (
        SELECT FROM steps s
        WHERE s.job_id = i.job AND s.round = i.round AND s.index = i.index AND s.children IS NOT NULL));
    IF v_jobs IS NOT NULL THEN
        PERFORM planq_lock_lineages(v_jobs);
    END IF;
    RETURN QUERY SELECT i.n, planq_take(
        CASE WHEN i.anew THEN planq_fail_anew(i) ELSE planq_finish_step(i) END,
        i.job, i.round, p_pool, i.take_steps, i.take_stage, p_worker, p_seconds, i.cached)
    FROM json_populate_recordset(NULL::planq_outcome, p_items) AS i;
END $$;

-- StepFailed, `anew`: as planq_finish_step for a failure; a step that is tried again forgets its child jobs, and what is
-- unfinished of them ends in the same commit. What they cost stays counted: it stands with themselves. The attempt that
-- delegated counts with this one as one.
CREATE FUNCTION planq_fail_anew(i planq_outcome) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_result CONSTANT json := planq_finish_step(i);
    v_children uuid[];
BEGIN
    IF v_result->>'status' = 'ready' THEN
        SELECT children INTO v_children FROM steps WHERE job_id = i.job AND round = i.round AND index = i.index;
        UPDATE steps SET joined = false, children = NULL, open_children = NULL, next_child = NULL, waits_for = NULL,
            max_parallel = NULL, note = NULL, releases = releases + 1
        WHERE job_id = i.job AND round = i.round AND index = i.index AND joined;
        IF v_children IS NOT NULL THEN
            PERFORM planq_drop_children(v_children);
        END IF;
    END IF;
    RETURN v_result;
END $$;

-- StepSucceeded, StepFailed: one attempt at a step ends. With `retry_in` a failed step becomes ready again after that time, unless
-- an earlier step has failed for good; child jobs of a step that has ended end with it. Returns {applied, status, job_status,
-- ready: [{index, pool, tool_name}]}.
CREATE FUNCTION planq_finish_step(i planq_outcome) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    s steps;
    f planq_unlocked;
    w record;
    v_status text;
    v_was_out int := 0;
    v_dependents int[];
    v_ended int[];
    v_skipped int[];
    v_more int := 0;
BEGIN
    IF EXISTS (SELECT FROM steps WHERE job_id = i.job AND round = i.round AND index = i.index AND children IS NOT NULL) THEN
        PERFORM planq_lock_lineages(ARRAY[i.job]);
    END IF;
    SELECT * INTO j FROM jobs WHERE id = i.job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status <> 'executing' OR j.round <> i.round THEN
        RETURN json_build_object('applied', false);
    END IF;
    IF j.places IS NOT NULL THEN
        SELECT count(*) INTO v_was_out FROM steps
        WHERE job_id = i.job AND index = i.index
          AND (status = ANY (planq_step_running()) OR (i.unoffered AND status = ANY (planq_step_ready())));
    END IF;
    IF i.error IS NULL THEN
        s := planq_succeed_step(i);
        v_dependents := s.dependents;
        IF s.job_id IS NOT NULL THEN
            v_status := 'succeeded';
            IF s.children IS NOT NULL THEN
                PERFORM planq_drop_children(s.children);
            END IF;
            PERFORM planq_append_events(ARRAY[planq_step_succeeded(s)]);
        END IF;
    ELSIF i.retry_in IS NOT NULL AND coalesce(i.index < j.halt_index, true) THEN
        v_status := CASE WHEN planq_retry_step(i) THEN 'ready' END;
    ELSE
        v_status := CASE WHEN planq_fail_step(i) THEN 'failed' END;
    END IF;
    IF v_status IS NULL THEN
        RETURN json_build_object('applied', false);
    ELSIF v_status = 'ready' THEN
        RETURN json_build_object('applied', true, 'status', v_status, 'job_status', j.status, 'ready', '[]'::json);
    ELSIF v_status = 'failed' AND j.on_failure IN ('continue', 'record') THEN
        v_skipped := planq_skip_needing(i.job, i.round, i.index);
        v_more := cardinality(v_skipped);
        -- What waited only for its turn. What was skipped before, and needs the output of this one, too, was taken off then.
        SELECT array_agg(d.index ORDER BY d.path DESC, d.index), array_agg(d.ended ORDER BY d.path DESC, d.index)
        INTO v_dependents, v_ended FROM (
            SELECT b.index, b.path, count(*)::int AS ended FROM unnest(i.index || v_skipped) AS x (index)
            CROSS JOIN LATERAL (SELECT a.dependents FROM steps a WHERE a.job_id = i.job AND a.index = x.index OFFSET 0) e
            CROSS JOIN LATERAL unnest(e.dependents) AS u (index)
            CROSS JOIN LATERAL (
                SELECT a.index, a.path FROM steps a
                WHERE a.job_id = i.job AND a.index = u.index AND a.status = ANY (planq_step_pending()) OFFSET 0
            ) b
            GROUP BY b.index, b.path
        ) d;
    ELSIF v_status = 'failed' THEN
        v_more := planq_skip_after(i.job, i.round, i.index);
        UPDATE jobs SET halt_index = least(halt_index, i.index) WHERE id = i.job;
    END IF;
    SELECT places - out_steps + v_was_out AS room, held_steps INTO w FROM jobs WHERE id = i.job;
    f := planq_unlock_steps(i.job, i.round, v_dependents, v_ended, w.room, w.held_steps, NULL);
    RETURN json_build_object('applied', true, 'status', v_status, 'stage_attempt', j.stage_attempt, 'ready', array_to_json(f.ready),
        'job_status', planq_close_steps(i.job, 1 + v_more, (v_status = 'failed')::int, f.out_steps - v_was_out, f.held_steps));
END $$;

-- A step fails for good: it runs, or is `unoffered`. Says whether the attempt was still on. The caller holds the job's row, for
-- a step with child jobs those above it, too, and counts the step off.
CREATE FUNCTION planq_fail_step(i planq_outcome) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    s record;
BEGIN
    UPDATE steps SET status = 'failed', output = NULL, payload_hash = NULL, output_bytes = NULL, excerpts = NULL,
        error = i.error::json, in_doubt = false, finished_at = planq_clock(), wake_at = NULL, wakes = 0, deadline = NULL,
        worker_losses = worker_losses + coalesce(i.lost, false)::int
    WHERE job_id = i.job AND round = i.round AND index = i.index AND attempt = i.attempt
      AND (status = ANY (planq_step_running())
           OR (i.unoffered AND status = ANY (planq_step_ready()) AND tool_away_since IS NOT NULL AND wake_at IS NOT NULL))
    RETURNING tenant_id, children INTO s;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF s.children IS NOT NULL THEN
        PERFORM planq_drop_children(s.children);
    END IF;
    PERFORM planq_append_event(s.tenant_id, i.job, 'step_failed',
        json_build_object('round', i.round, 'index', i.index, 'attempt', i.attempt, 'error', i.error::json));
    RETURN true;
END $$;

-- A step that runs, and has failed, is ready again after `retry_in` seconds; an attempt that only learned that it has to wait
-- (`is_wait`) does not count. Says whether the attempt was still on. The caller
-- holds the job's row.
CREATE FUNCTION planq_retry_step(i planq_outcome) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_at CONSTANT timestamptz := planq_now() + make_interval(secs => i.retry_in);
    v_tenant text;
BEGIN
    UPDATE steps SET status = 'ready', output = NULL, payload_hash = NULL, output_bytes = NULL, excerpts = NULL,
        error = i.error::json, in_doubt = coalesce(i.in_doubt, false), run_at = v_at, wake_at = v_at, wakes = 0, worker_id = NULL,
        deadline = NULL, worker_losses = worker_losses + coalesce(i.lost, false)::int, releases = releases + coalesce(i.is_wait, false)::int
    WHERE job_id = i.job AND round = i.round AND index = i.index AND attempt = i.attempt AND status = ANY (planq_step_running())
    RETURNING tenant_id INTO v_tenant;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM planq_append_event(v_tenant, i.job, 'step_retrying',
        json_build_object('round', i.round, 'index', i.index, 'attempt', i.attempt, 'error', i.error::json));
    RETURN true;
END $$;
