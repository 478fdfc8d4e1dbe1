-- PLAN and RESPOND end, many jobs in one commit (release 0003); the rules of 0003_take.sql hold.

-- Inserts model calls; the job's counters are the caller's. Texts in `p_calls` hold JSON.
CREATE FUNCTION planq_insert_calls(p_tenant text, p_job uuid, p_round int, p_calls json) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO model_calls (tenant_id, job_id, round, purpose, model, attempts, latency_ms, input_tokens,
                             output_tokens, cost_usd, error, exchange)
    SELECT p_tenant, p_job, p_round, c.purpose, c.model, c.attempts, c.latency_ms, c.input_tokens, c.output_tokens,
           c.cost_usd, c.error::json, c.exchange::json
    FROM json_to_recordset(p_calls) AS c (
        purpose text, model text, attempts int, latency_ms int, input_tokens int, output_tokens int, cost_usd numeric,
        error text, exchange text);
END $$;

-- Whether the outcomes that a fork's steps take over are all there; the caller holds the fork's row. Until the commit no
-- retention removes them: it waits for the key lock, or passes the job over.
CREATE FUNCTION planq_has_outcomes(p_tenant text, p_steps json) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM jobs WHERE id IN (SELECT g.reuse_job FROM json_to_recordset(p_steps) AS g (reuse_job uuid))
    ORDER BY id FOR KEY SHARE;
    RETURN NOT EXISTS (
        SELECT FROM json_to_recordset(p_steps) AS g (reuse_job uuid, reuse_index int)
        LEFT JOIN (jobs src JOIN steps o ON o.job_id = src.id AND o.round = src.round AND o.status = 'succeeded')
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
        wake_at = NULL, finished_at = clock_timestamp()
    FROM json_to_recordset(p_steps) AS g (index int, reuse_job uuid, reuse_index int)
    JOIN jobs src ON src.id = g.reuse_job
    JOIN steps o ON o.job_id = src.id AND o.round = src.round AND o.index = g.reuse_index
    WHERE s.job_id = p_job AND s.round = p_round AND s.index = g.index;
    PERFORM planq_touch_payload(k.tenant_id, k.payload_hash) FROM (
        SELECT DISTINCT tenant_id, payload_hash FROM steps
        WHERE job_id = p_job AND round = p_round AND payload_hash IS NOT NULL ORDER BY tenant_id, payload_hash
    ) k;
END $$;

-- PlanAccepted, many times. Items: {n, job, attempt, source, body, steps, open, reuses, seconds, calls, spent_calls,
-- spent_input, spent_output, spent_usd, take_steps, take_stage}. `open` counts the steps whose outcome is not taken over
-- from another job, `reuses` says whether there are others: those with `reuse_job` have the outcome of that job's step
-- `reuse_index`. `pending` says for how many steps without an outcome each one waits; those that are `taken` the caller
-- takes over, `take_steps` says whether there are any. `seconds` is the time that the plan gets, `spent_*` sum `calls` up.
-- Returns rows (n, moved) of those that landed, `moved` as planq_take does but without `ready`: that are the steps for
-- which `pending` is 0. Where the job is paused it is not `is_free`, and nothing was taken. Where an outcome to take over
-- is gone, {landed: false, gone: true}.
CREATE FUNCTION planq_accept_plans(p_items json, p_worker uuid, p_seconds float8)
RETURNS TABLE (n int, moved json) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    i record;
    j record;
    s steps;
    v_planning CONSTANT text := 'planning';
    v_running CONSTANT text := 'running';
    v_steps json;
    v_stage planq_stage;
    v_taken json[];
    v_events planq_event[];
BEGIN
    FOR i IN SELECT * FROM json_to_recordset(p_items) AS a (
        n int, job uuid, attempt int, source text, body text, steps text, open int, reuses boolean, seconds float8,
        calls text, spent_calls int, spent_input bigint, spent_output bigint, spent_usd numeric, take_steps boolean,
        take_stage boolean
    ) LOOP
        v_steps := i.steps::json;
        n := i.n;
        IF i.reuses THEN
            SELECT tenant_id INTO j FROM jobs WHERE id = i.job AND status = v_planning AND stage_worker IS NOT NULL
              AND stage_attempt = i.attempt FOR NO KEY UPDATE;
            IF FOUND AND NOT planq_has_outcomes(j.tenant_id, v_steps) THEN
                PERFORM planq_record_calls(i.job, i.calls::json);
                moved := '{"landed": false, "gone": true}';
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;
        UPDATE jobs SET
            status = CASE WHEN i.open > 0 THEN 'executing' ELSE 'responding' END,
            stage_worker = NULL, open_steps = i.open, failed_steps = 0, halt_index = NULL,
            deadline = CASE WHEN i.open > 0 THEN coalesce(paused_at, now()) + make_interval(secs => i.seconds) END,
            wake_at = CASE WHEN i.open = 0 THEN now() + planq_wake_grace() END, wakes = 0,
            model_calls = model_calls + coalesce(i.spent_calls, 0),
            input_tokens = input_tokens + coalesce(i.spent_input, 0),
            output_tokens = output_tokens + coalesce(i.spent_output, 0),
            cost_usd = CASE WHEN i.spent_usd IS NULL THEN cost_usd ELSE coalesce(cost_usd, 0) + i.spent_usd END
        WHERE id = i.job AND status = v_planning AND stage_worker IS NOT NULL AND stage_attempt = i.attempt
        RETURNING tenant_id, round, status, stage_attempt, paused_at IS NULL AND run_at <= now() AS is_free INTO j;
        IF NOT FOUND THEN
            PERFORM planq_record_calls(i.job, i.calls::json);
            CONTINUE;
        END IF;
        IF i.calls IS NOT NULL THEN
            PERFORM planq_insert_calls(j.tenant_id, i.job, j.round, i.calls::json);
        END IF;
        -- A caller's plan is there already.
        PERFORM FROM plans WHERE job_id = i.job AND round = j.round AND source = i.source AND body::text = i.body;
        IF NOT FOUND THEN
            INSERT INTO plans (job_id, round, tenant_id, source, body)
            VALUES (i.job, j.round, j.tenant_id, i.source, i.body::json)
            ON CONFLICT (job_id, round) DO UPDATE SET source = excluded.source, body = excluded.body;
        END IF;
        INSERT INTO steps (job_id, round, index, tenant_id, kind, tool_name, lane, effect, status, arguments, inputs,
                           depends_on, dependents, pending, retries, timeout_seconds, recovery, wanted, wake_at,
                           attempt, worker_id, started_at, deadline)
        SELECT i.job, j.round, g.index, j.tenant_id, g.kind, g.tool_name, g.lane, g.effect,
               CASE WHEN g.pending > 0 THEN 'pending' WHEN g.taken AND j.is_free THEN 'running' ELSE 'ready' END,
               g.arguments::json, g.inputs, g.depends_on, g.dependents, g.pending, g.retries, g.timeout_seconds,
               g.recovery, g.wanted::json,
               CASE WHEN g.pending = 0 AND NOT (g.taken AND j.is_free) THEN now() + planq_wake_grace() END,
               CASE WHEN g.taken AND j.is_free THEN 1 ELSE 0 END,
               CASE WHEN g.taken AND j.is_free THEN p_worker END,
               CASE WHEN g.taken AND j.is_free THEN clock_timestamp() END,
               CASE WHEN g.taken AND j.is_free THEN now() + make_interval(secs => g.timeout_seconds) END
        FROM json_to_recordset(v_steps) AS g (
            index int, kind text, tool_name text, lane text, effect text, arguments text, inputs int[],
            depends_on int[], dependents int[], pending int, retries int, timeout_seconds float8, recovery text,
            wanted text, taken boolean
        );
        IF i.reuses THEN
            PERFORM planq_take_over_outcomes(i.job, j.round, v_steps);
        END IF;
        v_events := v_events || ROW(j.tenant_id, i.job, 'plan_accepted', json_build_object(
            'round', j.round, 'steps', json_array_length(v_steps),
            'reused', json_array_length(v_steps) - i.open))::planq_event;
        v_taken := '{}';
        v_stage := NULL;
        IF j.is_free AND i.take_steps THEN
            FOR s IN SELECT * FROM steps WHERE job_id = i.job AND round = j.round AND status = v_running
                     ORDER BY index LOOP
                v_taken := v_taken || planq_step_claim(s);
                v_events := v_events || planq_step_started(s);
            END LOOP;
        ELSIF j.is_free AND i.take_stage AND i.open = 0 THEN
            v_stage := planq_take_stage(i.job, p_worker, p_seconds);
            v_events := v_events || v_stage.told;
        END IF;
        moved := json_build_object(
            'landed', true, 'job_status', j.status, 'is_free', j.is_free,
            'stage_attempt', coalesce(v_stage.attempt, j.stage_attempt),
            'taken', array_to_json(v_taken), 'stage', v_stage.claim);
        RETURN NEXT;
    END LOOP;
    PERFORM planq_tell_all(v_events);
END $$;

-- AnswerGiven, StageFailed, many times: nothing stays paused or asked. Items: {n, job, attempt, status, answer, error,
-- calls} and the sums of the calls as above. The ids of the jobs that have ended go over the channel `planq_ended`,
-- separated by commas, with the commit. Returns rows (n) of those that landed.
CREATE FUNCTION planq_end_jobs(p_items json) RETURNS TABLE (n int) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    i record;
    j record;
    v_stages CONSTANT text[] := '{planning,responding}';
    v_ended uuid[] := '{}';
    v_events planq_event[];
BEGIN
    FOR i IN SELECT * FROM json_to_recordset(p_items) AS e (
        n int, job uuid, attempt int, status text, answer text, error text, calls text, spent_calls int,
        spent_input bigint, spent_output bigint, spent_usd numeric
    ) LOOP
        UPDATE jobs SET
            status = i.status, answer = i.answer, error = i.error::json, stage_worker = NULL, deadline = NULL,
            wake_at = NULL, paused_at = NULL, finished_at = clock_timestamp(),
            model_calls = model_calls + coalesce(i.spent_calls, 0),
            input_tokens = input_tokens + coalesce(i.spent_input, 0),
            output_tokens = output_tokens + coalesce(i.spent_output, 0),
            cost_usd = CASE WHEN i.spent_usd IS NULL THEN cost_usd ELSE coalesce(cost_usd, 0) + i.spent_usd END
        WHERE id = i.job AND status = ANY (v_stages) AND stage_worker IS NOT NULL AND stage_attempt = i.attempt
        RETURNING tenant_id, round INTO j;
        IF NOT FOUND THEN
            PERFORM planq_record_calls(i.job, i.calls::json);
            CONTINUE;
        END IF;
        IF i.calls IS NOT NULL THEN
            PERFORM planq_insert_calls(j.tenant_id, i.job, j.round, i.calls::json);
        END IF;
        v_events := v_events || ROW(j.tenant_id, i.job, 'job_' || i.status, i.error::json)::planq_event;
        v_ended := v_ended || i.job;
        n := i.n;
        RETURN NEXT;
    END LOOP;
    IF cardinality(v_ended) > 0 THEN
        PERFORM planq_tell_all(v_events);
        PERFORM pg_notify('planq_ended', array_to_string(v_ended, ','));
    END IF;
END $$;

-- PlanRefused: keeps the plan with its defects; the job goes on to RESPOND, which the caller may take over. Returns as
-- planq_take does.
CREATE FUNCTION planq_refuse_and_take(
    p_job uuid, p_attempt int, p_source text, p_body json, p_errors json, p_calls json, p_take boolean, p_worker uuid,
    p_seconds float8
) RETURNS json LANGUAGE sql AS $$
    SELECT planq_take(CASE WHEN planq_refuse_plan(p_job, p_attempt, p_source, p_body, p_errors, p_calls)
        THEN json_build_object('landed', true, 'job_status', 'responding', 'stage_attempt', p_attempt, 'ready', '[]'::json)
        ELSE json_build_object('landed', false) END, p_job, 0, 'io', 0, p_take, p_worker, p_seconds)
$$;
