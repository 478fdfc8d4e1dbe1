-- Transitions that take over what they make ready, many in one commit (release 0003). The specification is
-- shared/domain/advance.py; what they claim is claimed as in 0003_claims.sql, and anything else keeps its wake-up.
-- Items come as one JSON array; texts in it hold JSON (`output`, `steps`, ...), because functions that take JSON apart
-- refuse \u0000. Several jobs are locked in the order of their ids. `take_steps` and `take_stage` are what the caller of
-- an item takes over; `p_lane` is the lane of all callers, `p_seconds` the longest that a stage may take.

-- Takes over what a transition has made ready: `p_moved` is what it returned, the caller holds the job's row.
-- Returns it with {taken: [claims], stage: claim}, the steps that were taken not in `ready` any more.
CREATE FUNCTION planq_take(
    p_moved json, p_job uuid, p_round int, p_lane text, p_steps int, p_stage boolean, p_worker uuid, p_seconds float8
) RETURNS json LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_ready CONSTANT text := 'ready';
    v_responding CONSTANT text := 'responding';
    v_taken int[] := '{}';
    v_has_stage boolean := false;
BEGIN
    IF NOT (p_moved->>'landed')::boolean OR (p_steps = 0 AND NOT p_stage) THEN
        RETURN p_moved;
    END IF;
    IF p_steps > 0 AND json_array_length(p_moved->'ready') > 0 THEN
        WITH mine AS (
            SELECT r.index FROM json_to_recordset(p_moved->'ready') AS r (index int, lane text)
            JOIN steps s ON s.job_id = p_job AND s.round = p_round AND s.index = r.index
            JOIN jobs j ON j.id = p_job
            WHERE r.lane = p_lane AND s.status = v_ready AND s.run_at <= now() AND j.paused_at IS NULL
            ORDER BY r.index LIMIT p_steps
        ), claimed AS (
            UPDATE steps s SET
                status = 'running', attempt = s.attempt + 1, worker_id = p_worker,
                started_at = coalesce(s.started_at, clock_timestamp()),
                deadline = now() + make_interval(secs => s.timeout_seconds), wake_at = NULL, wakes = 0
            FROM mine WHERE s.job_id = p_job AND s.round = p_round AND s.index = mine.index AND s.status = v_ready
            RETURNING s.tenant_id, s.index, s.attempt, s.tool_name
        ), told AS (
            INSERT INTO events (tenant_id, job_id, kind, data)
            SELECT c.tenant_id, p_job, 'step_started', json_build_object(
                'round', p_round, 'index', c.index, 'attempt', c.attempt, 'tool_name', c.tool_name)
            FROM claimed c ORDER BY c.index
        )
        SELECT coalesce(array_agg(c.index), '{}') INTO v_taken FROM claimed c;
    END IF;
    IF p_stage AND p_moved->>'job_status' = 'responding' THEN
        WITH claimed AS (
            UPDATE jobs j SET stage_worker = p_worker, stage_attempt = j.stage_attempt + 1,
                deadline = now() + make_interval(secs => p_seconds), wake_at = NULL, wakes = 0
            WHERE j.id = p_job AND j.status = v_responding AND j.stage_worker IS NULL AND j.run_at <= now()
              AND j.paused_at IS NULL
            RETURNING j.tenant_id, j.stage_attempt
        ), told AS (
            INSERT INTO events (tenant_id, job_id, kind, data)
            SELECT c.tenant_id, p_job, 'stage_started',
                json_build_object('stage', 'responding', 'attempt', c.stage_attempt)
            FROM claimed c
        )
        SELECT count(*) > 0 INTO v_has_stage FROM claimed c;
    END IF;
    RETURN json_build_object(
        'landed', true, 'status', p_moved->'status', 'job_status', p_moved->'job_status',
        'stage_attempt', coalesce((p_moved->>'stage_attempt')::int, 0) + v_has_stage::int,
        'ready', (SELECT coalesce(json_agg(r.value), '[]') FROM json_array_elements(p_moved->'ready') r
                  WHERE (r.value->>'index')::int <> ALL (v_taken)),
        'taken', (SELECT json_agg(c.claim ORDER BY c.index) FROM planq_step_claims c
                  WHERE c.job_id = p_job AND c.round = p_round AND c.index = ANY (v_taken)),
        'stage', CASE WHEN v_has_stage THEN (SELECT c.claim FROM planq_stage_claims c WHERE c.job_id = p_job) END);
END $$;

-- StepFailed, many times. Items: {n, job, round, index, attempt, error, retry_in, unsure, take_steps, take_stage}, the
-- time in seconds. Returns rows (n, moved), `moved` as planq_take does.
CREATE FUNCTION planq_fail_steps(p_items json, p_lane text, p_worker uuid, p_seconds float8)
RETURNS TABLE (n int, moved json) LANGUAGE sql AS $$
    SELECT i.n, planq_take(
        planq_finish_step(i.job, i.round, i.index, i.attempt, false, NULL, i.error::json,
                          make_interval(secs => i.retry_in), false, NULL, NULL, NULL, NULL, i.unsure),
        i.job, i.round, p_lane, i.take_steps, i.take_stage, p_worker, p_seconds)
    FROM (
        SELECT * FROM json_to_recordset(p_items) AS f (
            n int, job uuid, round int, index int, attempt int, error text, retry_in float8, unsure boolean,
            take_steps int, take_stage boolean
        ) ORDER BY f.job, f.n
    ) i
$$;

CREATE TYPE planq_outcome AS (
    n int, job uuid, round int, index int, attempt int, output text, hash text, bytes bigint, excerpts text,
    artifact text, take_steps int, take_stage boolean
);

-- A step that has just succeeded; `open_steps` is what its job had before, `is_free` whether work of it may be begun.
CREATE TYPE planq_done AS (
    n int, tenant text, job uuid, round int, index int, attempt int, tool_name text, dependents int[],
    open_steps int, is_free boolean, take_steps int, take_stage boolean
);

-- A step that has just become ready, or was taken over at once.
CREATE TYPE planq_freed AS (
    tenant text, job uuid, round int, index int, lane text, tool_name text, attempt int, is_taken boolean
);

-- Where a job stands after steps of it have ended; `is_taken` says that RESPOND was taken over.
CREATE TYPE planq_closed AS (job uuid, tenant text, status text, stage_attempt int, is_taken boolean);

-- Keeps what hangs on outcomes beside their steps: artifacts, and the references to payloads.
CREATE FUNCTION planq_keep_outcomes(p_items planq_outcome[], p_done planq_done[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM planq_touch_payload(k.tenant, k.hash) FROM (
        SELECT DISTINCT d.tenant, decode(i.hash, 'hex') AS hash
        FROM unnest(p_done) d JOIN unnest(p_items) i ON i.n = d.n WHERE i.hash IS NOT NULL
        ORDER BY d.tenant, hash
    ) k;
    INSERT INTO artifacts (tenant_id, id, job_id, step_index, tool_name, skill_id, type, body, payload_hash)
    SELECT d.tenant, i.artifact::json->>'id' AS id, d.job, d.index, d.tool_name, i.artifact::json->>'skill_id',
           i.artifact::json->>'type', i.output::json, decode(i.hash, 'hex')
    FROM unnest(p_done) d JOIN unnest(p_items) i ON i.n = d.n WHERE i.artifact IS NOT NULL
    ORDER BY d.tenant, id
    ON CONFLICT (tenant_id, id) DO UPDATE SET body = excluded.body, payload_hash = excluded.payload_hash,
        type = excluded.type, skill_id = excluded.skill_id, step_index = excluded.step_index,
        tool_name = excluded.tool_name
    WHERE artifacts.job_id = excluded.job_id;
END $$;

-- Takes their dependencies off the steps that wait for those in `p_done`, and claims for `p_worker` as many of the ones
-- that become ready as the callers take over. Returns those that became ready. The caller holds the jobs' rows.
CREATE FUNCTION planq_unlock_and_take(p_done planq_done[], p_lane text, p_worker uuid) RETURNS planq_freed[]
LANGUAGE plpgsql AS $$
DECLARE
    v_freed planq_freed[];
BEGIN
    WITH freed AS (
        SELECT d.job, d.round, f.index, count(*)::int AS by
        FROM unnest(p_done) d CROSS JOIN LATERAL unnest(d.dependents) AS f (index) GROUP BY d.job, d.round, f.index
    ), budget AS (
        SELECT d.job, sum(d.take_steps) AS steps FROM unnest(p_done) d WHERE d.is_free GROUP BY d.job
    ), ranked AS (
        SELECT s.job_id, s.round, s.index, f.by, s.pending = f.by AS is_ready, s.lane, s.run_at, row_number() OVER (
            PARTITION BY s.job_id ORDER BY s.pending <> f.by, s.lane <> p_lane, s.run_at > now(), s.index) AS rank
        FROM freed f JOIN steps s ON s.job_id = f.job AND s.round = f.round AND s.index = f.index
        WHERE s.status = 'pending'
    ), chosen AS (
        SELECT r.job_id, r.round, r.index, r.by, r.is_ready,
            r.is_ready AND r.lane = p_lane AND r.run_at <= now() AND r.rank <= coalesce(b.steps, 0) AS is_taken
        FROM ranked r LEFT JOIN budget b ON b.job = r.job_id
    ), moved AS (
        UPDATE steps s SET
            pending = s.pending - c.by,
            status = CASE WHEN c.is_taken THEN 'running' WHEN c.is_ready THEN 'ready' ELSE s.status END,
            attempt = s.attempt + c.is_taken::int,
            worker_id = CASE WHEN c.is_taken THEN p_worker ELSE s.worker_id END,
            started_at = CASE WHEN c.is_taken THEN coalesce(s.started_at, clock_timestamp()) ELSE s.started_at END,
            deadline = CASE WHEN c.is_taken THEN now() + make_interval(secs => s.timeout_seconds) END,
            wake_at = CASE WHEN c.is_ready AND NOT c.is_taken THEN now() + planq_wake_grace() END
        FROM chosen c WHERE s.job_id = c.job_id AND s.round = c.round AND s.index = c.index
        RETURNING s.tenant_id, s.job_id, s.round, s.index, s.lane, s.tool_name, s.attempt, s.status
    )
    SELECT array_agg(ROW(m.tenant_id, m.job_id, m.round, m.index, m.lane, m.tool_name, m.attempt,
                         m.status = 'running')::planq_freed ORDER BY m.job_id, m.index)
    INTO v_freed FROM moved m WHERE m.status <> 'pending';
    RETURN v_freed;
END $$;

-- Counts the steps in `p_done` off their jobs; the last one of a job opens RESPOND, which its caller may take over.
-- Tells of all that has happened. Returns where the jobs stand. The caller holds their rows.
CREATE FUNCTION planq_close_and_take(p_done planq_done[], p_freed planq_freed[], p_worker uuid, p_seconds float8)
RETURNS planq_closed[] LANGUAGE plpgsql AS $$
DECLARE
    v_closed planq_closed[];
BEGIN
    WITH closing AS (
        SELECT d.job, count(*)::int AS count, count(*) = max(d.open_steps) AS is_last,
               count(*) = max(d.open_steps) AND bool_or(d.take_stage AND d.is_free) AS is_taken
        FROM unnest(p_done) d GROUP BY d.job
    ), closed AS (
        UPDATE jobs j SET
            open_steps = j.open_steps - c.count,
            status = CASE WHEN c.is_last THEN 'responding' ELSE j.status END,
            open_questions = CASE WHEN c.is_last THEN 0 ELSE j.open_questions END,
            stage_worker = CASE WHEN c.is_taken THEN p_worker ELSE j.stage_worker END,
            stage_attempt = j.stage_attempt + c.is_taken::int,
            wake_at = CASE WHEN c.is_last AND NOT c.is_taken THEN now() + planq_wake_grace() END,
            wakes = 0,
            deadline = CASE WHEN c.is_taken THEN now() + make_interval(secs => p_seconds)
                            WHEN NOT c.is_last THEN j.deadline END
        FROM closing c WHERE j.id = c.job
        RETURNING j.id, j.tenant_id, j.status, j.stage_attempt, c.is_taken
    ), told AS (
        INSERT INTO events (tenant_id, job_id, kind, data)
        SELECT e.tenant, e.job, e.kind, e.data FROM (
            SELECT 1 AS part, d.n, d.tenant, d.job, 'step_succeeded' AS kind, json_build_object(
                'round', d.round, 'index', d.index, 'attempt', d.attempt, 'error', NULL) AS data
            FROM unnest(p_done) d
            UNION ALL
            SELECT 2, f.index, f.tenant, f.job, 'step_started', json_build_object(
                'round', f.round, 'index', f.index, 'attempt', f.attempt, 'tool_name', f.tool_name)
            FROM unnest(p_freed) f WHERE f.is_taken
            UNION ALL
            SELECT 3, 0, c.tenant_id, c.id, 'stage_started',
                json_build_object('stage', c.status, 'attempt', c.stage_attempt)
            FROM closed c WHERE c.is_taken
        ) e ORDER BY e.part, e.n
    )
    SELECT array_agg(ROW(c.id, c.tenant_id, c.status, c.stage_attempt, c.is_taken)::planq_closed)
    INTO v_closed FROM closed c;
    RETURN v_closed;
END $$;

-- StepSucceeded, many times, also many of one job. Items are `planq_outcome`s; a large output comes as the hash of its
-- payload (hexadecimal), its size and its excerpts instead of `output`. `p_keeps` says that there are payloads or
-- artifacts among them. Returns a row for each job of which a step landed: `landed` are the numbers of its items, the
-- rest is what planq_take returns; the callers share `ready` and `taken`.
CREATE FUNCTION planq_succeed_steps(p_items json, p_keeps boolean, p_lane text, p_worker uuid, p_seconds float8)
RETURNS TABLE (landed int[], job_status text, stage_attempt int, ready json, taken json, stage json)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_items planq_outcome[];
    v_done planq_done[];
    v_one planq_done;
    v_freed planq_freed[];
    v_closed planq_closed[];
BEGIN
    SELECT array_agg(i) INTO v_items FROM json_populate_recordset(NULL::planq_outcome, p_items) i;
    WITH held AS MATERIALIZED (
        SELECT j.id, j.round, j.status, j.open_steps, j.paused_at IS NULL AND j.run_at <= now() AS is_free
        FROM jobs j WHERE j.id IN (SELECT i.job FROM unnest(v_items) i) ORDER BY j.id FOR NO KEY UPDATE
    ), done AS (
        UPDATE steps s SET
            status = 'succeeded', output = i.output::json, payload_hash = decode(i.hash, 'hex'),
            output_bytes = i.bytes, excerpts = i.excerpts::json, error = NULL, unsure = false,
            finished_at = clock_timestamp(), wake_at = NULL, wakes = 0, deadline = NULL
        FROM held h JOIN unnest(v_items) i ON i.job = h.id AND i.round = h.round
        WHERE h.status IN ('executing', 'input_required')
          AND s.job_id = i.job AND s.round = i.round AND s.index = i.index AND s.attempt = i.attempt
          AND (s.status = 'running' OR (s.status = 'waiting' AND s.question IS NULL))
        RETURNING i.n, s.tenant_id, s.job_id, s.round, s.index, s.attempt, s.tool_name, s.dependents, h.open_steps,
            h.is_free, i.take_steps, i.take_stage
    )
    SELECT array_agg(ROW(d.n, d.tenant_id, d.job_id, d.round, d.index, d.attempt, d.tool_name, d.dependents,
                         d.open_steps, d.is_free, d.take_steps, d.take_stage)::planq_done ORDER BY d.n)
    INTO v_done FROM done d;
    IF v_done IS NULL THEN
        RETURN;
    END IF;
    IF p_keeps THEN
        PERFORM planq_keep_outcomes(v_items, v_done);
    END IF;
    FOREACH v_one IN ARRAY v_done LOOP
        IF cardinality(v_one.dependents) > 0 THEN
            v_freed := planq_unlock_and_take(v_done, p_lane, p_worker);
            EXIT;
        END IF;
    END LOOP;
    v_closed := planq_close_and_take(v_done, v_freed, p_worker, p_seconds);
    RETURN QUERY SELECT
        (SELECT array_agg(d.n) FROM unnest(v_done) d WHERE d.job = c.job),
        c.status, c.stage_attempt,
        (SELECT json_agg(json_build_object('index', f.index, 'lane', f.lane, 'tool_name', f.tool_name))
         FROM unnest(v_freed) f WHERE f.job = c.job AND NOT f.is_taken),
        (SELECT json_agg(k.claim ORDER BY k.index)
         FROM unnest(v_freed) f JOIN planq_step_claims k ON k.job_id = f.job AND k.round = f.round AND k.index = f.index
         WHERE f.job = c.job AND f.is_taken),
        CASE WHEN c.is_taken THEN (SELECT k.claim FROM planq_stage_claims k WHERE k.job_id = c.job) END
    FROM unnest(v_closed) c;
END $$;
