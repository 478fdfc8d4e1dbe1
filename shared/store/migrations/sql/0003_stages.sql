-- PLAN and RESPOND end, many jobs in one commit (release 0003); the rules of 0003_take.sql hold.

-- A plan to be stored. `open` counts its steps whose outcome is not taken over from another job, `reuses` says whether
-- there are others; `seconds` is the time that the plan gets.
CREATE TYPE planq_plan AS (
    n int, job uuid, attempt int, source text, body text, steps text, open int, reuses boolean, seconds float8,
    calls text, take_steps int, take_stage boolean
);

-- A job whose plan has landed; `is_taken` says that RESPOND was taken over, because nothing is left to be done.
CREATE TYPE planq_accepted AS (
    n int, job uuid, tenant text, round int, status text, stage_attempt int, is_free boolean, is_taken boolean
);

-- What model calls add to their job's counters.
CREATE TYPE planq_spent AS (calls int, input_tokens bigint, output_tokens bigint, cost numeric);

CREATE FUNCTION planq_spent_in(p_calls json) RETURNS planq_spent LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW(count(*)::int, sum(c.input_tokens), sum(c.output_tokens), sum(c.cost_usd))::planq_spent
    FROM json_to_recordset(p_calls) AS c (input_tokens int, output_tokens int, cost_usd numeric)
$$;

-- Inserts model calls; the job's counters are the caller's. Texts in `p_calls` hold JSON.
CREATE FUNCTION planq_insert_calls(p_tenant text, p_job uuid, p_round int, p_calls json) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO model_calls (tenant_id, job_id, round, purpose, model, attempts, latency_ms, input_tokens,
                             output_tokens, cost_usd, error, exchange)
    SELECT p_tenant, p_job, p_round, c.purpose, c.model, c.attempts, c.latency_ms, c.input_tokens, c.output_tokens,
           c.cost_usd, c.error::json, c.exchange::json
    FROM json_to_recordset(p_calls) AS c (
        purpose text, model text, attempts int, latency_ms int, input_tokens int, output_tokens int, cost_usd numeric,
        error text, exchange text)
$$;

-- The numbers of those plans that take over an outcome which is gone. Until the commit no retention removes the others:
-- it waits for the key lock, or passes the job over.
CREATE FUNCTION planq_gone_outcomes(p_items planq_plan[]) RETURNS int[] LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM jobs WHERE id IN (
        SELECT g.reuse_job FROM unnest(p_items) i, json_to_recordset(i.steps::json) AS g (reuse_job uuid) WHERE i.reuses
    ) ORDER BY id FOR KEY SHARE;
    RETURN coalesce((
        SELECT array_agg(DISTINCT i.n)
        FROM unnest(p_items) i JOIN jobs j ON j.id = i.job
        CROSS JOIN LATERAL json_to_recordset(i.steps::json) AS g (reuse_job uuid, reuse_index int)
        LEFT JOIN (jobs src JOIN steps o ON o.job_id = src.id AND o.round = src.round AND o.status = 'succeeded')
            ON src.id = g.reuse_job AND src.tenant_id = j.tenant_id AND o.index = g.reuse_index
        WHERE i.reuses AND g.reuse_job IS NOT NULL AND o.index IS NULL
          AND j.status = 'planning' AND j.stage_worker IS NOT NULL AND j.stage_attempt = i.attempt
    ), '{}');
END $$;

-- Stores the steps of plans that have landed; of those that nothing holds up, claims for `p_worker` as many as the
-- callers take over. Returns those that are ready, or taken.
CREATE FUNCTION planq_store_steps(p_items planq_plan[], p_landed planq_accepted[], p_lane text, p_worker uuid)
RETURNS planq_freed[] LANGUAGE plpgsql AS $$
DECLARE
    v_freed planq_freed[];
BEGIN
    WITH given AS MATERIALIZED (
        SELECT l.n, l.job, l.tenant, l.round, CASE WHEN l.is_free THEN i.take_steps ELSE 0 END AS budget, i.reuses, s.*
        FROM unnest(p_landed) l JOIN unnest(p_items) i ON i.n = l.n
        CROSS JOIN LATERAL json_to_recordset(i.steps::json) AS s (
            index int, kind text, tool_name text, lane text, effect text, arguments text, inputs int[],
            depends_on int[], dependents int[], retries int, timeout_seconds float8, recovery text, wanted text,
            reuse_job uuid, reuse_index int
        )
    ), done AS (
        SELECT g.n, d.index, count(*)::int AS by FROM given g CROSS JOIN LATERAL unnest(g.dependents) AS d (index)
        WHERE g.reuses AND g.reuse_job IS NOT NULL GROUP BY g.n, d.index
    ), placed AS (
        SELECT g.*, cardinality(g.depends_on) - coalesce(done.by, 0) AS pending
        FROM given g LEFT JOIN done ON g.reuses AND done.n = g.n AND done.index = g.index
    ), ranked AS (
        SELECT p.*, CASE WHEN p.reuse_job IS NOT NULL THEN 'succeeded' WHEN p.pending > 0 THEN 'pending'
                         WHEN p.lane = p_lane AND row_number() OVER (
                             PARTITION BY p.n ORDER BY p.reuse_job IS NOT NULL OR p.pending > 0, p.lane <> p_lane, p.index
                         ) <= p.budget THEN 'running' ELSE 'ready' END AS status
        FROM placed p
    ), new_steps AS (
        INSERT INTO steps (job_id, round, index, tenant_id, kind, tool_name, lane, effect, status, arguments, inputs,
                           depends_on, dependents, pending, retries, timeout_seconds, recovery, wanted, wake_at,
                           attempt, worker_id, started_at, deadline, reused_job, reused_index, origin_job, origin_index,
                           output, payload_hash, output_bytes, excerpts, finished_at)
        SELECT g.job, g.round, g.index, g.tenant, g.kind, g.tool_name, g.lane, g.effect, g.status, g.arguments::json,
               g.inputs, g.depends_on, g.dependents, g.pending, g.retries, g.timeout_seconds,
               coalesce(g.recovery, 'fail'), g.wanted::json,
               CASE WHEN g.status = 'ready' THEN now() + planq_wake_grace() END,
               (g.status = 'running')::int, CASE WHEN g.status = 'running' THEN p_worker END,
               CASE WHEN g.status = 'running' THEN clock_timestamp() END,
               CASE WHEN g.status = 'running' THEN now() + make_interval(secs => g.timeout_seconds) END,
               g.reuse_job, g.reuse_index, coalesce(o.origin_job, g.reuse_job), coalesce(o.origin_index, g.reuse_index),
               o.output, o.payload_hash, o.output_bytes, o.excerpts,
               CASE WHEN g.status = 'succeeded' THEN clock_timestamp() END
        FROM ranked g
        LEFT JOIN jobs src ON src.id = g.reuse_job
        LEFT JOIN steps o ON o.job_id = src.id AND o.round = src.round AND o.index = g.reuse_index
        RETURNING steps.tenant_id, steps.job_id, steps.round, steps.index, steps.lane, steps.tool_name, steps.attempt,
            steps.status
    )
    SELECT array_agg(ROW(s.tenant_id, s.job_id, s.round, s.index, s.lane, s.tool_name, s.attempt,
                         s.status = 'running')::planq_freed ORDER BY s.job_id, s.index)
    INTO v_freed FROM new_steps s WHERE s.status IN ('ready', 'running');
    RETURN v_freed;
END $$;

-- Tells of plans that have landed, and of what was taken over with them.
CREATE FUNCTION planq_tell_accepted(p_items planq_plan[], p_landed planq_accepted[], p_freed planq_freed[])
RETURNS void LANGUAGE sql AS $$
    INSERT INTO events (tenant_id, job_id, kind, data)
    SELECT e.tenant, e.job, e.kind, e.data FROM (
        SELECT 1 AS part, l.n, l.tenant, l.job, 'plan_accepted' AS kind, json_build_object(
            'round', l.round, 'steps', json_array_length(i.steps::json),
            'reused', json_array_length(i.steps::json) - i.open) AS data
        FROM unnest(p_landed) l JOIN unnest(p_items) i ON i.n = l.n
        UNION ALL
        SELECT 2, f.index, f.tenant, f.job, 'step_started', json_build_object(
            'round', f.round, 'index', f.index, 'attempt', f.attempt, 'tool_name', f.tool_name)
        FROM unnest(p_freed) f WHERE f.is_taken
        UNION ALL
        SELECT 3, l.n, l.tenant, l.job, 'stage_started',
            json_build_object('stage', l.status, 'attempt', l.stage_attempt)
        FROM unnest(p_landed) l WHERE l.is_taken
    ) e ORDER BY e.part, e.n
$$;

-- PlanAccepted, many times. Items are `planq_plan`s; texts in their `steps` hold JSON (`arguments`, `wanted`). A step with
-- `reuse_job` takes over the outcome of that job's step `reuse_index`. `p_spends` and `p_reuses` say that some of the
-- items have `calls`, or `reuses`. Returns rows (n, moved) of those that landed, `moved` as planq_take does, and of those
-- whose outcomes to take over are gone: {landed: false, gone: true}.
CREATE FUNCTION planq_accept_plans(
    p_items json, p_spends boolean, p_reuses boolean, p_lane text, p_worker uuid, p_seconds float8
) RETURNS TABLE (n int, moved json) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_items planq_plan[];
    v_landed planq_accepted[];
    v_freed planq_freed[];
    v_gone int[] := '{}';
BEGIN
    SELECT array_agg(i) INTO v_items FROM json_populate_recordset(NULL::planq_plan, p_items) i;
    IF p_reuses THEN
        PERFORM FROM jobs WHERE id IN (SELECT i.job FROM unnest(v_items) i) ORDER BY id FOR NO KEY UPDATE;
        v_gone := planq_gone_outcomes(v_items);
    END IF;
    WITH held AS MATERIALIZED (
        SELECT i.n, i.job, i.open, i.seconds, j.paused_at IS NULL AND j.run_at <= now() AS is_free,
            i.open = 0 AND i.take_stage AND j.paused_at IS NULL AND j.run_at <= now() AS is_taken,
            j.status = 'planning' AND j.stage_worker IS NOT NULL AND j.stage_attempt = i.attempt AS is_theirs,
            CASE WHEN i.calls IS NOT NULL THEN planq_spent_in(i.calls::json) END AS spent
        FROM unnest(v_items) i JOIN jobs j ON j.id = i.job WHERE i.n <> ALL (v_gone)
        ORDER BY j.id FOR NO KEY UPDATE OF j
    ), landed AS (
        UPDATE jobs j SET
            status = CASE WHEN h.open > 0 THEN 'executing' ELSE 'responding' END,
            stage_worker = CASE WHEN h.is_taken THEN p_worker END,
            stage_attempt = j.stage_attempt + h.is_taken::int,
            open_steps = h.open, failed_steps = 0, halt_index = NULL,
            deadline = CASE WHEN h.open > 0 THEN coalesce(j.paused_at, now()) + make_interval(secs => h.seconds)
                            WHEN h.is_taken THEN now() + make_interval(secs => p_seconds) END,
            wake_at = CASE WHEN h.open = 0 AND NOT h.is_taken THEN now() + planq_wake_grace() END,
            wakes = 0,
            model_calls = j.model_calls + coalesce((h.spent).calls, 0),
            input_tokens = j.input_tokens + coalesce((h.spent).input_tokens, 0),
            output_tokens = j.output_tokens + coalesce((h.spent).output_tokens, 0),
            cost_usd = CASE WHEN (h.spent).cost IS NULL THEN j.cost_usd
                            ELSE coalesce(j.cost_usd, 0) + (h.spent).cost END
        FROM held h WHERE j.id = h.job AND h.is_theirs
        RETURNING h.n, j.id, j.tenant_id, j.round, j.status, j.stage_attempt, h.is_free, h.is_taken
    )
    SELECT array_agg(ROW(l.n, l.id, l.tenant_id, l.round, l.status, l.stage_attempt, l.is_free,
                         l.is_taken)::planq_accepted ORDER BY l.n)
    INTO v_landed FROM landed l;
    IF p_spends THEN
        PERFORM planq_insert_calls(l.tenant, l.job, l.round, i.calls::json)
        FROM unnest(v_landed) l JOIN unnest(v_items) i ON i.n = l.n WHERE i.calls IS NOT NULL;
        PERFORM planq_record_calls(i.job, i.calls::json) FROM unnest(v_items) i
        WHERE i.calls IS NOT NULL AND NOT EXISTS (SELECT FROM unnest(v_landed) l WHERE l.n = i.n);
    END IF;
    IF v_landed IS NOT NULL THEN
        INSERT INTO plans (job_id, round, tenant_id, source, body)
        SELECT l.job, l.round, l.tenant, i.source, i.body::json
        FROM unnest(v_landed) l JOIN unnest(v_items) i ON i.n = l.n
        WHERE NOT EXISTS (
            SELECT FROM plans p WHERE p.job_id = l.job AND p.round = l.round AND p.source = i.source
              AND p.body::text = i.body)
        ON CONFLICT (job_id, round) DO UPDATE SET source = excluded.source, body = excluded.body;
        v_freed := planq_store_steps(v_items, v_landed, p_lane, p_worker);
        IF p_reuses THEN
            PERFORM planq_touch_payload(k.tenant_id, k.payload_hash) FROM (
                SELECT DISTINCT s.tenant_id, s.payload_hash
                FROM unnest(v_landed) l JOIN steps s ON s.job_id = l.job AND s.round = l.round
                WHERE s.payload_hash IS NOT NULL ORDER BY s.tenant_id, s.payload_hash
            ) k;
        END IF;
        PERFORM planq_tell_accepted(v_items, v_landed, v_freed);
    END IF;
    RETURN QUERY SELECT l.n, json_build_object(
        'landed', true, 'job_status', l.status, 'stage_attempt', l.stage_attempt,
        'ready', (SELECT json_agg(json_build_object('index', f.index, 'lane', f.lane, 'tool_name', f.tool_name))
                  FROM unnest(v_freed) f WHERE f.job = l.job AND NOT f.is_taken),
        'taken', (SELECT json_agg(k.claim ORDER BY k.index) FROM unnest(v_freed) f
                  JOIN planq_step_claims k ON k.job_id = f.job AND k.round = f.round AND k.index = f.index
                  WHERE f.job = l.job AND f.is_taken),
        'stage', CASE WHEN l.is_taken THEN (SELECT k.claim FROM planq_stage_claims k WHERE k.job_id = l.job) END)
    FROM unnest(v_landed) l
    UNION ALL SELECT g, json_build_object('landed', false, 'gone', true) FROM unnest(v_gone) g;
END $$;

-- A job's end from its stage.
CREATE TYPE planq_end AS (n int, job uuid, attempt int, status text, answer text, error text, calls text);

-- AnswerGiven, StageFailed, many times: nothing stays paused or asked. Items are `planq_end`s; `p_spends` says that some
-- have `calls`. The ids of jobs that have ended go over the channel `planq_ended`, separated by commas, with the commit.
-- Returns rows (n) of those that landed.
CREATE FUNCTION planq_end_jobs(p_items json, p_spends boolean) RETURNS TABLE (n int)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_items planq_end[];
    v_landed planq_accepted[];
BEGIN
    SELECT array_agg(i) INTO v_items FROM json_populate_recordset(NULL::planq_end, p_items) i;
    WITH held AS MATERIALIZED (
        SELECT i.n, i.job, i.status, i.answer, i.error::json AS error,
            j.status IN ('planning', 'responding') AND j.stage_worker IS NOT NULL AND j.stage_attempt = i.attempt
                AS is_theirs,
            CASE WHEN i.calls IS NOT NULL THEN planq_spent_in(i.calls::json) END AS spent
        FROM unnest(v_items) i JOIN jobs j ON j.id = i.job ORDER BY j.id FOR NO KEY UPDATE OF j
    ), landed AS (
        UPDATE jobs j SET
            status = h.status, answer = h.answer, error = h.error, stage_worker = NULL, deadline = NULL,
            wake_at = NULL, paused_at = NULL, finished_at = clock_timestamp(),
            model_calls = j.model_calls + coalesce((h.spent).calls, 0),
            input_tokens = j.input_tokens + coalesce((h.spent).input_tokens, 0),
            output_tokens = j.output_tokens + coalesce((h.spent).output_tokens, 0),
            cost_usd = CASE WHEN (h.spent).cost IS NULL THEN j.cost_usd
                            ELSE coalesce(j.cost_usd, 0) + (h.spent).cost END
        FROM held h WHERE j.id = h.job AND h.is_theirs
        RETURNING h.n, j.id, j.tenant_id, j.round, j.status, j.stage_attempt, j.error
    ), told AS (
        INSERT INTO events (tenant_id, job_id, kind, data)
        SELECT l.tenant_id, l.id, 'job_' || l.status, l.error FROM landed l ORDER BY l.n
    )
    SELECT array_agg(ROW(l.n, l.id, l.tenant_id, l.round, l.status, l.stage_attempt, false, false)::planq_accepted)
    INTO v_landed FROM landed l;
    IF p_spends THEN
        PERFORM planq_insert_calls(l.tenant, l.job, l.round, i.calls::json)
        FROM unnest(v_landed) l JOIN unnest(v_items) i ON i.n = l.n WHERE i.calls IS NOT NULL;
        PERFORM planq_record_calls(i.job, i.calls::json) FROM unnest(v_items) i
        WHERE i.calls IS NOT NULL AND NOT EXISTS (SELECT FROM unnest(v_landed) l WHERE l.n = i.n);
    END IF;
    IF v_landed IS NOT NULL THEN
        PERFORM pg_notify('planq_ended', string_agg(l.job::text, ',')) FROM unnest(v_landed) l;
        RETURN QUERY SELECT l.n FROM unnest(v_landed) l;
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
