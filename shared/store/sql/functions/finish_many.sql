-- Finish many: what planq_succeed_steps does, set by set, for many steps of one job that end together. Each of its three parts is
-- the second form of a transition that stands elsewhere, because one by one costs half as much again (docs/decisions.md, D106).
--
-- planq_succeed_many        planq_succeed_step, without units
--   planq_unlock_and_take     planq_unlock_steps, with planq_take_step
--   planq_close_and_take      planq_close_steps
--
-- `enable_seqscan = off`: a session keeps its plans, also those that it made while the tables were all but empty (claim.sql).

-- StepSucceeded, for many steps of one job among the items, set by set: of what they all wait for, and of the job's row,
-- one version is written and not one for each. Items are as in planq_succeed_steps, without units. Returns a row for each
-- job of which a step applied: `applied` are the numbers of its items, the rest is what planq_take returns; the callers
-- share `ready`, `taken` and `stage`.
CREATE FUNCTION planq_succeed_many(p_items json, p_lane text, p_worker uuid, p_seconds float8)
RETURNS TABLE (applied int[], job_status text, stage_attempt int, ready json, taken json, stage json)
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
        SELECT j.id, j.round, j.status, j.open_steps, j.places - j.out_steps AS room, j.held_steps,
            j.paused_at IS NULL AND j.run_at <= planq_now() AS is_free
        FROM jobs j WHERE j.id IN (SELECT i.job FROM unnest(v_items) i) ORDER BY j.id FOR NO KEY UPDATE
    ), done AS (
        UPDATE steps s SET
            status = 'succeeded', output = i.output::json, payload_hash = decode(i.hash, 'hex'),
            output_bytes = i.bytes, excerpts = i.excerpts::json, error = NULL, in_doubt = false,
            finished_at = planq_clock(), wake_at = NULL, wakes = 0, deadline = NULL
        FROM held h JOIN unnest(v_items) i ON i.job = h.id AND i.round = h.round
        WHERE h.status IN ('executing', 'input_required')
          AND s.job_id = i.job AND s.round = i.round AND s.index = i.index AND s.attempt = i.attempt
          AND (s.status = 'running'
               OR (s.status = 'waiting' AND s.elicitation_id IS NULL AND (s.waits_for IS NULL OR s.joined)))
        RETURNING i.n, s.tenant_id, s.job_id, s.round, s.index, s.attempt, s.tool_name, s.dependents, h.open_steps,
            h.is_free, i.take_steps, i.take_stage, h.room, h.held_steps,
            CASE WHEN h.room IS NOT NULL THEN (SELECT o.status = 'running' FROM steps o WHERE o.job_id = s.job_id AND o.index = s.index) END AS was_out
    )
    SELECT array_agg(ROW(d.n, d.tenant_id, d.job_id, d.round, d.index, d.attempt, d.tool_name, d.dependents,
                         d.open_steps, d.is_free, d.take_steps, d.take_stage, d.room, d.held_steps, d.was_out
                        )::planq_done ORDER BY d.n)
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
         FROM unnest(v_freed) f WHERE f.job = c.job AND NOT f.is_taken AND NOT f.is_held),
        (SELECT json_agg(planq_step_claim(s) ORDER BY s.index)
         FROM unnest(v_freed) f JOIN steps s ON s.job_id = f.job AND s.round = f.round AND s.index = f.index
         WHERE f.job = c.job AND f.is_taken),
        CASE WHEN c.is_taken THEN planq_stage_claim(c.job) END
    FROM unnest(v_closed) c;
END $$;

-- Takes their dependencies off the steps that wait for those in `p_done`, and claims for `p_worker` as many of the ones
-- that become ready as the callers take over; what is beyond a job's window is held, and what was held follows where there is
-- room. Returns those that became ready, or are so no longer in vain. The caller holds the jobs' rows.
CREATE FUNCTION planq_unlock_and_take(p_done planq_done[], p_lane text, p_worker uuid) RETURNS planq_freed[]
LANGUAGE plpgsql AS $$
DECLARE
    v_freed planq_freed[];
    h record;
BEGIN
    WITH freed AS (
        SELECT d.job, d.round, f.index, count(*)::int AS by
        FROM unnest(p_done) d CROSS JOIN LATERAL unnest(d.dependents) AS f (index) GROUP BY d.job, d.round, f.index
    ), budget AS (
        SELECT d.job, sum(d.take_steps) FILTER (WHERE d.is_free) AS steps,
            CASE WHEN max(d.room) IS NOT NULL THEN greatest(max(d.room) + count(*) FILTER (WHERE d.was_out), 0) END AS room
        FROM unnest(p_done) d GROUP BY d.job
    ), ranked AS (
        SELECT s.job_id, s.round, s.index, f.by, s.pending = f.by AS is_ready, s.lane, s.run_at, s.tool_name, s.tool_digest,
            row_number() OVER (
            PARTITION BY s.job_id
                ORDER BY s.pending <> f.by, s.lane <> p_lane, s.run_at > planq_now(), s.path DESC, s.index) AS rank,
            row_number() OVER (PARTITION BY s.job_id ORDER BY s.pending <> f.by, s.path DESC, s.index) AS place
        FROM freed f JOIN steps s ON s.job_id = f.job AND s.round = f.round AND s.index = f.index
        WHERE s.status = 'pending'
    ), chosen AS (
        SELECT r.job_id, r.round, r.index, r.by, r.is_ready,
            r.is_ready AND r.lane = p_lane AND r.run_at <= planq_now() AND r.rank <= coalesce(b.steps, 0)
                AND coalesce(r.place <= b.room, true)
                AND planq_can_run(p_worker, r.lane, r.tool_name, r.tool_digest) AS is_taken,
            r.is_ready AND coalesce(r.place > b.room, false) AS is_held
        FROM ranked r LEFT JOIN budget b ON b.job = r.job_id
    ), moved AS (
        UPDATE steps s SET
            pending = s.pending - c.by,
            status = CASE WHEN c.is_taken THEN 'running' WHEN c.is_ready THEN 'ready' ELSE s.status END,
            attempt = s.attempt + c.is_taken::int,
            worker_id = CASE WHEN c.is_taken THEN p_worker ELSE s.worker_id END,
            started_at = CASE WHEN c.is_taken THEN coalesce(s.started_at, planq_clock()) ELSE s.started_at END,
            deadline = CASE WHEN c.is_taken THEN planq_now() + make_interval(secs => s.timeout_seconds) END,
            wake_at = CASE WHEN c.is_ready AND NOT c.is_taken AND NOT c.is_held THEN planq_now() + planq_wake_grace() END
        FROM chosen c WHERE s.job_id = c.job_id AND s.round = c.round AND s.index = c.index
        RETURNING s.tenant_id, s.job_id, s.round, s.index, s.lane, s.tool_name, s.attempt, s.status, s.path, c.is_held
    )
    SELECT array_agg(ROW(m.tenant_id, m.job_id, m.round, m.index, m.lane, m.tool_name, m.attempt,
                         m.status = 'running', m.is_held, false)::planq_freed ORDER BY m.job_id, m.path DESC, m.index)
    INTO v_freed FROM moved m WHERE m.status <> 'pending';
    FOR h IN
        SELECT d.job, max(d.room) + count(*) FILTER (WHERE d.was_out)
                 - (SELECT count(*) FROM unnest(v_freed) f WHERE f.job = d.job) AS room,
               coalesce(sum(d.take_steps) FILTER (WHERE d.is_free), 0)
                 - (SELECT count(*) FROM unnest(v_freed) f WHERE f.job = d.job AND f.is_taken) AS takes
        FROM unnest(p_done) d WHERE d.held_steps > 0 GROUP BY d.job
    LOOP
        v_freed := v_freed || ARRAY(
            SELECT ROW(s.tenant_id, s.job_id, s.round, s.index, s.lane, s.tool_name, s.attempt, s.status = 'running',
                       false, true)::planq_freed
            FROM planq_let_follow(h.job, greatest(h.room, 0)::int, planq_wake_grace(), p_lane, h.takes::int, p_worker) s);
    END LOOP;
    RETURN v_freed;
END $$;

-- Counts the steps in `p_done` off their jobs; the last one of a job opens the next stage, which its caller may take over.
-- Tells of all that has happened. Returns where the jobs stand. The caller holds their rows.
CREATE FUNCTION planq_close_and_take(p_done planq_done[], p_freed planq_freed[], p_worker uuid, p_seconds float8)
RETURNS planq_closed[] LANGUAGE plpgsql AS $$
DECLARE
    v_ending CONSTANT uuid[] := ARRAY(
        SELECT d.job FROM unnest(p_done) d JOIN jobs j ON j.id = d.job
        WHERE j.after_steps = 'completed' OR (j.on_failure = 'fail' AND j.failed_steps > 0)
        GROUP BY d.job HAVING count(*) = max(d.open_steps));
    v_closed planq_closed[];
    v_job uuid;
    v_end planq_event;
BEGIN
    WITH closing AS (
        SELECT d.job, count(*)::int AS count, count(*) = max(d.open_steps) AS is_last,
               count(*) = max(d.open_steps) AND bool_or(d.take_stage AND d.is_free) AS is_taken,
               (SELECT count(*) FROM unnest(p_freed) f WHERE f.job = d.job AND NOT f.is_held)
                 - count(*) FILTER (WHERE d.was_out) AS more_out,
               (SELECT count(*) FILTER (WHERE f.is_held) - count(*) FILTER (WHERE f.was_held)
                FROM unnest(p_freed) f WHERE f.job = d.job) AS more_held
        FROM unnest(p_done) d GROUP BY d.job
    ), closed AS (
        UPDATE jobs j SET
            open_steps = j.open_steps - c.count,
            places = CASE WHEN NOT c.is_last THEN j.places END,
            out_steps = CASE WHEN NOT c.is_last THEN j.out_steps + c.more_out END,
            held_steps = CASE WHEN NOT c.is_last AND j.places IS NOT NULL THEN j.held_steps + c.more_held ELSE 0 END,
            status = CASE WHEN c.is_last THEN j.after_steps ELSE j.status END,
            round = CASE WHEN c.is_last THEN j.round + (j.after_steps = 'planning')::int ELSE j.round END,
            stage_losses = CASE WHEN c.is_last AND j.after_steps = 'planning' THEN 0 ELSE j.stage_losses END,
            rounds_deadline = CASE WHEN c.is_last AND j.after_steps = 'planning' THEN j.deadline END,
            open_questions = CASE WHEN c.is_last THEN 0 ELSE j.open_questions END,
            stage_worker = CASE WHEN c.is_taken THEN p_worker ELSE j.stage_worker END,
            stage_attempt = j.stage_attempt + c.is_taken::int,
            wake_at = CASE WHEN c.is_last AND NOT c.is_taken THEN planq_now() + planq_wake_grace() END,
            wakes = 0,
            deadline = CASE WHEN c.is_taken THEN planq_now() + make_interval(secs => p_seconds)
                            WHEN NOT c.is_last THEN j.deadline END
        FROM closing c WHERE j.id = c.job AND j.id <> ALL (v_ending)
        RETURNING j.id, j.tenant_id, j.status, j.stage_attempt, c.is_taken
    ), appended AS (
        INSERT INTO events (tenant_id, job_id, kind, data)
        SELECT e.tenant, e.job, e.kind, e.data FROM (
            SELECT 1 AS part, d.n, d.tenant, d.job, 'step_succeeded' AS kind,
                planq_success_told(d.round, d.index, d.attempt) AS data
            FROM unnest(p_done) d
            UNION ALL
            SELECT 2, f.index, f.tenant, f.job, 'step_started',
                planq_start_told(f.round, f.index, f.attempt, f.tool_name, p_worker)
            FROM unnest(p_freed) f WHERE f.is_taken
            UNION ALL
            SELECT 3, 0, c.tenant_id, c.id, 'stage_started',
                json_build_object('stage', c.status, 'attempt', c.stage_attempt)
            FROM closed c WHERE c.is_taken
        ) e ORDER BY e.part, e.n
    )
    SELECT array_agg(ROW(c.id, c.tenant_id, c.status, c.stage_attempt, c.is_taken)::planq_closed)
    INTO v_closed FROM closed c;
    FOREACH v_job IN ARRAY v_ending LOOP
        v_end := planq_end_with_steps(v_job, 0);
        PERFORM planq_append_events(ARRAY[v_end]);
        v_closed := v_closed || ROW(v_job, v_end.tenant, planq_status_told(v_end), 0, false)::planq_closed;
    END LOOP;
    RETURN v_closed;
END $$;
