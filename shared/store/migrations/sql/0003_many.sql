-- Many steps of one job that succeed in one commit (release 0003); the rules of 0003_take.sql hold.

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

-- The same for many steps of one job among the items, set by set: of what they all wait for, and of the job's row, one
-- version is written and not one for each. Returns a row for each job of which a step landed: `landed` are the numbers of
-- its items, the rest is what planq_take returns; the callers share `ready`, `taken` and `stage`.
CREATE FUNCTION planq_succeed_many(p_items json, p_lane text, p_worker uuid, p_seconds float8)
RETURNS TABLE (landed int[], job_status text, stage_attempt int, ready json, taken json, stage json)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_items planq_outcome[];
    v_done planq_done[];
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
    PERFORM planq_keep_outcome(d.tenant, d.job, d.index, d.tool_name, i.output::json, decode(i.hash, 'hex'),
                               i.artifact::json)
    FROM unnest(v_items) i JOIN unnest(v_done) d ON d.n = i.n WHERE i.hash IS NOT NULL OR i.artifact IS NOT NULL;
    v_freed := planq_unlock_and_take(v_done, p_lane, p_worker);
    v_closed := planq_close_and_take(v_done, v_freed, p_worker, p_seconds);
    RETURN QUERY SELECT
        (SELECT array_agg(d.n) FROM unnest(v_done) d WHERE d.job = c.job),
        c.status, c.stage_attempt,
        (SELECT json_agg(json_build_object('index', f.index, 'lane', f.lane, 'tool_name', f.tool_name))
         FROM unnest(v_freed) f WHERE f.job = c.job AND NOT f.is_taken),
        (SELECT json_agg(planq_step_claim(s) ORDER BY s.index)
         FROM unnest(v_freed) f JOIN steps s ON s.job_id = f.job AND s.round = f.round AND s.index = f.index
         WHERE f.job = c.job AND f.is_taken),
        CASE WHEN c.is_taken THEN planq_stage_claim(c.job) END
    FROM unnest(v_closed) c;
END $$;
