-- Transitions of jobs and steps that touch more than one row. Each is one round trip and one commit, guarded by the
-- state and the attempt it expects, and says whether it landed. The specification is shared/domain/advance.py.
-- Lock order everywhere: the job's row first, then its steps. Claims lock a single step and never wait for a job.

-- How long a published wake-up may stay unclaimed before the sweeper publishes it again.
CREATE FUNCTION planq_wake_grace() RETURNS interval LANGUAGE sql IMMUTABLE AS $$ SELECT interval '15 seconds' $$;

-- Appends one event; called inside the transition that it tells.
CREATE FUNCTION planq_tell(p_tenant text, p_job uuid, p_kind text, p_data json) RETURNS void LANGUAGE sql AS $$
    INSERT INTO events (tenant_id, job_id, kind, data) VALUES (p_tenant, p_job, p_kind, p_data)
$$;

-- Records model calls, also those of a stage whose attempt has expired: what was spent was spent.
-- `error` and `exchange` arrive as texts that hold JSON: functions that take JSON apart refuse \u0000 and lone surrogates
-- anywhere in it, which the type json itself stores as they are.
CREATE FUNCTION planq_record_calls(p_job uuid, p_calls json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_calls IS NULL OR json_array_length(p_calls) = 0 THEN
        RETURN;
    END IF;
    WITH calls AS (
        SELECT * FROM json_to_recordset(p_calls) AS c (
            purpose text, model text, attempts int, latency_ms int, input_tokens int, output_tokens int,
            cost_usd numeric, error text, exchange text
        )
    ), kept AS (
        INSERT INTO model_calls (tenant_id, job_id, round, purpose, model, attempts, latency_ms, input_tokens,
                                 output_tokens, cost_usd, error, exchange)
        SELECT j.tenant_id, j.id, j.round, c.purpose, c.model, c.attempts, c.latency_ms, c.input_tokens,
               c.output_tokens, c.cost_usd, c.error::json, c.exchange::json
        FROM calls c, jobs j WHERE j.id = p_job
    )
    UPDATE jobs j SET
        model_calls = j.model_calls + t.n,
        input_tokens = j.input_tokens + t.input_tokens,
        output_tokens = j.output_tokens + t.output_tokens,
        cost_usd = CASE WHEN t.cost IS NULL THEN j.cost_usd ELSE coalesce(j.cost_usd, 0) + t.cost END
    FROM (SELECT count(*)::int AS n, sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
                 sum(cost_usd) AS cost FROM calls) t
    WHERE j.id = p_job;
END $$;

-- PlanAccepted: stores the plan and its steps; returns {landed, ready: [{index, lane, tool_name}]}. The `arguments` of
-- a step arrive as a text that holds JSON, for the same reason as above.
CREATE FUNCTION planq_accept_plan(
    p_job uuid, p_attempt int, p_source text, p_body json, p_steps json, p_timeout interval, p_calls json
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    v_count int;
    v_ready json;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    PERFORM planq_record_calls(p_job, p_calls);
    IF j.id IS NULL OR j.status <> 'planning' OR j.stage_worker IS NULL OR j.stage_attempt <> p_attempt THEN
        RETURN json_build_object('landed', false);
    END IF;
    INSERT INTO plans (job_id, round, tenant_id, source, body)
    VALUES (j.id, j.round, j.tenant_id, p_source, p_body)
    ON CONFLICT (job_id, round) DO UPDATE SET source = excluded.source, body = excluded.body;
    WITH new_steps AS (
        INSERT INTO steps (job_id, round, index, tenant_id, kind, tool_name, lane, effect, status, arguments, inputs,
                           depends_on, dependents, pending, retries, timeout_seconds, wake_at)
        SELECT j.id, j.round, s.index, j.tenant_id, s.kind, s.tool_name, s.lane, s.effect,
               CASE WHEN cardinality(s.depends_on) = 0 THEN 'ready' ELSE 'pending' END,
               s.arguments::json, s.inputs, s.depends_on, s.dependents, cardinality(s.depends_on), s.retries,
               s.timeout_seconds,
               CASE WHEN cardinality(s.depends_on) = 0 THEN now() + planq_wake_grace() END
        FROM json_to_recordset(p_steps) AS s (
            index int, kind text, tool_name text, lane text, effect text, arguments text, inputs int[],
            depends_on int[], dependents int[], retries int, timeout_seconds float8
        )
        RETURNING steps.index, steps.lane, steps.tool_name, steps.status
    )
    SELECT count(*), coalesce(
        json_agg(json_build_object('index', n.index, 'lane', n.lane, 'tool_name', n.tool_name) ORDER BY n.index)
            FILTER (WHERE n.status = 'ready'), '[]')
    INTO v_count, v_ready FROM new_steps n;
    UPDATE jobs SET status = 'executing', stage_worker = NULL, open_steps = v_count, failed_steps = 0, halt_index = NULL,
        deadline = now() + p_timeout, wake_at = NULL, wakes = 0
    WHERE id = j.id;
    PERFORM planq_tell(j.tenant_id, j.id, 'plan_accepted', json_build_object('round', j.round, 'steps', v_count));
    RETURN json_build_object('landed', true, 'ready', v_ready);
END $$;

-- PlanRefused: keeps the plan with its defects; the job goes on to RESPOND. Returns whether it landed.
CREATE FUNCTION planq_refuse_plan(
    p_job uuid, p_attempt int, p_source text, p_body json, p_errors json, p_calls json
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    PERFORM planq_record_calls(p_job, p_calls);
    IF j.id IS NULL OR j.status <> 'planning' OR j.stage_worker IS NULL OR j.stage_attempt <> p_attempt THEN
        RETURN false;
    END IF;
    INSERT INTO plans (job_id, round, tenant_id, source, body, errors)
    VALUES (j.id, j.round, j.tenant_id, p_source, p_body, p_errors)
    ON CONFLICT (job_id, round) DO UPDATE SET source = excluded.source, body = excluded.body, errors = excluded.errors;
    UPDATE jobs SET status = 'responding', stage_worker = NULL, deadline = NULL, wake_at = now() + planq_wake_grace(),
        wakes = 0
    WHERE id = j.id;
    PERFORM planq_tell(j.tenant_id, j.id, 'plan_refused', p_errors);
    RETURN true;
END $$;

-- AnswerGiven, StageFailed: the job ends as `p_status`. Returns whether it landed.
CREATE FUNCTION planq_end_job(
    p_job uuid, p_attempt int, p_status text, p_answer text, p_error json, p_calls json
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    PERFORM planq_record_calls(p_job, p_calls);
    IF j.id IS NULL OR j.status NOT IN ('planning', 'responding') OR j.stage_worker IS NULL
       OR j.stage_attempt <> p_attempt THEN
        RETURN false;
    END IF;
    UPDATE jobs SET status = p_status, answer = p_answer, error = p_error, stage_worker = NULL, deadline = NULL,
        wake_at = NULL, finished_at = clock_timestamp()
    WHERE id = j.id;
    PERFORM planq_tell(j.tenant_id, j.id, 'job_' || p_status, p_error);
    RETURN true;
END $$;

-- StageReleased: another worker may take the stage at once. With `p_lost` the loss is counted. Returns whether it landed.
CREATE FUNCTION planq_release_stage(p_job uuid, p_attempt int, p_lost boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_tenant text;
BEGIN
    UPDATE jobs SET stage_worker = NULL, deadline = NULL, wake_at = now(), wakes = 0,
        stage_losses = stage_losses + CASE WHEN p_lost THEN 1 ELSE 0 END
    WHERE id = p_job AND status IN ('planning', 'responding') AND stage_worker IS NOT NULL
      AND stage_attempt = p_attempt
    RETURNING tenant_id INTO v_tenant;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM planq_tell(v_tenant, p_job, 'stage_released', json_build_object('attempt', p_attempt, 'lost', p_lost));
    RETURN true;
END $$;

-- Counts `p_closed` steps off the job; the last one opens RESPOND. The caller holds the job's row.
CREATE FUNCTION planq_close_steps(p_job uuid, p_closed int, p_failed int) RETURNS text LANGUAGE sql AS $$
    UPDATE jobs SET
        open_steps = open_steps - p_closed,
        failed_steps = failed_steps + p_failed,
        status = CASE WHEN open_steps = p_closed THEN 'responding' ELSE status END,
        wake_at = CASE WHEN open_steps = p_closed THEN now() + planq_wake_grace() END,
        wakes = 0,
        deadline = CASE WHEN open_steps = p_closed THEN NULL ELSE deadline END
    WHERE id = p_job RETURNING status
$$;

-- StepSucceeded, StepFailed: stores the outcome of an attempt, unlocks dependents or skips what had not begun.
-- With `p_retry_in` a failed step becomes ready again after that time, unless an earlier step has failed for good.
-- Returns {landed, status, job_status, ready: [{index, lane, tool_name}]}; status is the step's.
CREATE FUNCTION planq_finish_step(
    p_job uuid, p_round int, p_index int, p_attempt int, p_succeeded boolean, p_output json, p_error json,
    p_retry_in interval, p_lost boolean, p_artifact json
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
    IF j.id IS NULL OR j.status <> 'executing' OR j.round <> p_round THEN
        RETURN json_build_object('landed', false);
    END IF;
    v_status := CASE
        WHEN p_succeeded THEN 'succeeded'
        WHEN p_retry_in IS NOT NULL AND coalesce(p_index < j.halt_index, true) THEN 'ready'
        ELSE 'failed' END;
    UPDATE steps SET
        status = v_status,
        output = CASE WHEN p_succeeded THEN p_output END,
        error = CASE WHEN p_succeeded THEN NULL ELSE p_error END,
        finished_at = CASE WHEN v_status <> 'ready' THEN clock_timestamp() END,
        run_at = CASE WHEN v_status = 'ready' THEN now() + p_retry_in ELSE run_at END,
        wake_at = CASE WHEN v_status = 'ready' THEN now() + p_retry_in END,
        wakes = 0,
        worker_losses = worker_losses + CASE WHEN p_lost THEN 1 ELSE 0 END,
        worker_id = CASE WHEN v_status = 'ready' THEN NULL ELSE worker_id END,
        deadline = NULL
    WHERE job_id = p_job AND round = p_round AND index = p_index AND attempt = p_attempt
      AND (status = 'running' OR (status = 'waiting' AND p_succeeded))
    RETURNING * INTO s;
    IF NOT FOUND THEN
        RETURN json_build_object('landed', false);
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
            INSERT INTO artifacts (tenant_id, id, job_id, step_index, tool_name, skill_id, type, body)
            VALUES (j.tenant_id, p_artifact->>'id', p_job, p_index, s.tool_name, p_artifact->>'skill_id',
                    p_artifact->>'type', p_output)
            ON CONFLICT (tenant_id, id) DO UPDATE SET body = excluded.body, type = excluded.type,
                skill_id = excluded.skill_id, step_index = excluded.step_index, tool_name = excluded.tool_name
            WHERE artifacts.job_id = excluded.job_id;
        END IF;
        IF cardinality(s.dependents) > 0 THEN
            v_ready := planq_unlock(p_job, p_round, s.dependents);
        END IF;
    END IF;
    v_job_status := planq_close_steps(p_job, 1 + v_skipped, CASE WHEN v_status = 'failed' THEN 1 ELSE 0 END);
    RETURN json_build_object('landed', true, 'status', v_status, 'job_status', v_job_status, 'ready', v_ready);
END $$;

-- Takes one dependency off each dependent; returns those that became ready. The caller holds the job's row.
CREATE FUNCTION planq_unlock(p_job uuid, p_round int, p_dependents int[]) RETURNS json LANGUAGE sql AS $$
    WITH unlocked AS (
        UPDATE steps SET
            pending = pending - 1,
            status = CASE WHEN pending = 1 THEN 'ready' ELSE status END,
            wake_at = CASE WHEN pending = 1 THEN now() + planq_wake_grace() END
        WHERE job_id = p_job AND round = p_round AND index = ANY (p_dependents) AND status = 'pending'
        RETURNING index, lane, tool_name, status
    )
    SELECT coalesce(
        json_agg(json_build_object('index', index, 'lane', lane, 'tool_name', tool_name) ORDER BY index)
            FILTER (WHERE status = 'ready'), '[]')
    FROM unlocked
$$;

-- SkipAfter: the sequence would have halted at `p_index`, so nothing later starts; neither does what waits for a step
-- that will not run (only an explicit depends_on can name a later step). Returns how many steps were skipped.
-- The caller holds the job's row.
CREATE FUNCTION planq_skip_after(p_job uuid, p_round int, p_index int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_count int;
BEGIN
    WITH RECURSIVE doomed (index) AS (
        SELECT index FROM steps
        WHERE job_id = p_job AND round = p_round AND (index = p_index OR (index > p_index AND status IN ('pending', 'ready')))
        UNION
        SELECT unnest(s.dependents) FROM doomed d
        JOIN steps s ON s.job_id = p_job AND s.round = p_round AND s.index = d.index
    )
    UPDATE steps SET status = 'skipped', finished_at = clock_timestamp(), wake_at = NULL
    WHERE job_id = p_job AND round = p_round AND status IN ('pending', 'ready')
      AND index IN (SELECT index FROM doomed);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- StepSuspended: the step waits for a timer and will succeed with `p_output`; the plan's time is extended by the wait.
-- Returns whether it landed.
CREATE FUNCTION planq_suspend_step(
    p_job uuid, p_round int, p_index int, p_attempt int, p_delay interval, p_output json
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status <> 'executing' THEN
        RETURN false;
    END IF;
    UPDATE steps SET status = 'waiting', output = p_output, wake_at = now() + p_delay, worker_id = NULL,
        deadline = NULL
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = 'running' AND attempt = p_attempt;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE jobs SET deadline = deadline + p_delay WHERE id = p_job;
    PERFORM planq_tell(j.tenant_id, p_job, 'step_waiting',
        json_build_object('round', p_round, 'index', p_index, 'seconds', extract(epoch FROM p_delay)));
    RETURN true;
END $$;

-- The timer of a waiting step has run out: it succeeds with the output it was suspended with. Returns as
-- planq_finish_step does.
CREATE FUNCTION planq_fire_timer(p_job uuid, p_round int, p_index int, p_attempt int) RETURNS json LANGUAGE sql AS $$
    SELECT planq_finish_step(p_job, p_round, p_index, p_attempt, true, s.output, NULL, NULL, false, NULL)
    FROM (SELECT (SELECT output FROM steps WHERE job_id = p_job AND round = p_round AND index = p_index) AS output) s
$$;

-- StepReleased: a worker that stops gives a running step back, so that another one continues at once. Returns whether
-- it landed.
CREATE FUNCTION planq_release_step(p_job uuid, p_round int, p_index int, p_attempt int) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_tenant text;
BEGIN
    UPDATE steps SET status = 'ready', run_at = now(), wake_at = now(), wakes = 0, worker_id = NULL,
        deadline = NULL, releases = releases + 1
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = 'running' AND attempt = p_attempt
    RETURNING tenant_id INTO v_tenant;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM planq_tell(v_tenant, p_job, 'step_released',
        json_build_object('round', p_round, 'index', p_index, 'attempt', p_attempt));
    RETURN true;
END $$;

-- CancelRequested: ends the job and every step of it that has not ended; what still runs is fenced off by its status.
-- Returns {found, landed, status}.
CREATE FUNCTION planq_cancel_job(p_job uuid, p_tenant text) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job AND tenant_id = p_tenant FOR NO KEY UPDATE;
    IF j.id IS NULL THEN
        RETURN json_build_object('found', false, 'landed', false);
    END IF;
    IF j.status IN ('completed', 'failed', 'cancelled') THEN
        RETURN json_build_object('found', true, 'landed', false, 'status', j.status);
    END IF;
    UPDATE steps SET status = 'cancelled', finished_at = clock_timestamp(), wake_at = NULL, deadline = NULL
    WHERE job_id = p_job AND status IN ('pending', 'ready', 'running', 'waiting');
    UPDATE jobs SET status = 'cancelled', cancel_requested_at = now(), finished_at = clock_timestamp(),
        stage_worker = NULL, wake_at = NULL, deadline = NULL, open_steps = 0
    WHERE id = p_job;
    PERFORM planq_tell(j.tenant_id, p_job, 'job_cancelled', NULL);
    RETURN json_build_object('found', true, 'landed', true, 'status', 'cancelled');
END $$;

-- PlanExpired: what runs, waits or could have run fails with `p_error`, so that the answer tells of it; the rest is
-- skipped; the job goes on to RESPOND. One statement for all steps: a claim or a release slips in between two.
-- Returns whether it landed.
CREATE FUNCTION planq_expire_plan(p_job uuid, p_error json) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    v_closed int;
    v_failed int;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status <> 'executing' OR j.deadline IS NULL OR j.deadline > now() THEN
        RETURN false;
    END IF;
    WITH closed AS (
        UPDATE steps SET
            status = CASE status WHEN 'pending' THEN 'skipped' ELSE 'failed' END,
            error = CASE status WHEN 'pending' THEN NULL ELSE p_error END,
            output = NULL,
            finished_at = clock_timestamp(),
            wake_at = NULL,
            deadline = NULL
        WHERE job_id = p_job AND round = j.round AND status IN ('pending', 'ready', 'running', 'waiting')
        RETURNING steps.status
    )
    SELECT count(*), count(*) FILTER (WHERE closed.status = 'failed') INTO v_closed, v_failed FROM closed;
    PERFORM planq_close_steps(p_job, v_closed, v_failed);
    PERFORM planq_tell(j.tenant_id, p_job, 'plan_expired', p_error);
    RETURN true;
END $$;

-- Takes up to `p_limit` wake-ups that are due and moves their next look into the future, twice as far each time, so
-- that a long queue is not flooded with copies. One sweeper acts at a time; the others get nothing.
-- Returns rows (kind: plan | respond | step, job_id, round, index, lane, tool_name, attempt).
CREATE FUNCTION planq_take_due_wakes(p_limit int)
RETURNS TABLE (kind text, job_id uuid, round int, index int, lane text, tool_name text, attempt int)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('planq.sweep')) THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH due AS (
        SELECT j.id FROM jobs j
        WHERE j.wake_at <= now() AND j.run_at <= now() AND j.stage_worker IS NULL
          AND j.status IN ('queued', 'planning', 'executing', 'input_required', 'responding')
          AND j.status IN ('queued', 'planning', 'responding')
        ORDER BY j.wake_at LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE jobs SET wakes = jobs.wakes + 1,
        wake_at = now() + least(planq_wake_grace() * 2 ^ least(jobs.wakes, 10), interval '10 minutes')
    FROM due WHERE jobs.id = due.id
    RETURNING CASE jobs.status WHEN 'responding' THEN 'respond' ELSE 'plan' END, jobs.id, jobs.round,
        NULL::int, 'io'::text, NULL::text, jobs.stage_attempt;
    RETURN QUERY
    WITH due AS (
        SELECT s.job_id, s.round, s.index FROM steps s
        WHERE s.status IN ('ready', 'waiting') AND s.status = 'ready' AND s.wake_at <= now()
        ORDER BY s.wake_at LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE steps SET wakes = steps.wakes + 1,
        wake_at = now() + least(planq_wake_grace() * 2 ^ least(steps.wakes, 10), interval '10 minutes')
    FROM due WHERE steps.job_id = due.job_id AND steps.round = due.round AND steps.index = due.index
    RETURNING 'step'::text, steps.job_id, steps.round, steps.index, steps.lane, steps.tool_name, steps.attempt;
END $$;
