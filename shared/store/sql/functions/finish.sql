-- Finish: one attempt at a step ends, in one commit that is fenced by the attempt's number.
--
-- The way of a success, planq_succeed_steps: lock the job, store the output (planq_keep_outcome), append the event, take
-- one dependency off each dependent (planq_unlock_one), claim for the same worker what became ready, and count the step
-- off its job; the last one opens the next stage (planq_close_steps, or planq_close_and_take_stage), or ends the job where no
-- stage follows (planq_end_with_steps). planq_succeed_many does it set by set, for many steps of one job. planq_fail_steps retries a step, or fails it and skips what it halts
-- (planq_skip_after) or what needs its output (planq_skip_needing). planq_finish_step is one end of one step, for everything that is not on the hot path.
--
-- Lock order everywhere: the job's row first, then its steps. Claims lock a single step and never wait for a job. Every
-- transition is one round trip, guarded by the state and the attempt it expects, and says whether it applied; its
-- executable specification is a pure model that property tests hold equal to it. Items are as in plan.sql.
--
-- `enable_seqscan = off`: a session keeps its plans, also those that it made while the tables were all but empty (claim.sql).

-- StepSucceeded, many times, each followed by the rest of its unit. Items: {n, job, round, index, attempt, output, hash,
-- bytes, excerpts, artifact, unit, unit_seconds, take_steps, take_stage}; a large output comes as the hash of its payload
-- (hexadecimal), its size and its excerpts instead of `output`. `unit` lists {index, output, artifact, seconds} of the
-- steps that ran after it, each the only one that waits for the one before, and waits for nothing else; `unit_seconds`
-- sums their times up. Each is claimed and succeeds at once, as its first attempt, up to the first one that cannot be
-- claimed: nothing of a paused job is, nothing that is skipped by now. Returns rows (n, result) of those that applied,
-- `result` as planq_take does with {steps: how many have succeeded}.
CREATE FUNCTION planq_succeed_steps(p_items json, p_lane text, p_worker uuid, p_seconds float8)
RETURNS TABLE (n int, result json) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_waiting CONSTANT text := 'waiting';
    v_running CONSTANT text := 'running';
    v_pending CONSTANT text := 'pending';
    i record;
    j record;
    r record;
    s steps;
    t steps;
    v_index int;
    v_steps int;
    v_budget int;
    v_room int;
    v_out int;
    v_held int;
    v_stage planq_stage;
    v_ready json[];
    v_taken json[];
    v_end planq_event;
    v_events planq_event[];
BEGIN
    FOR i IN SELECT * FROM json_to_recordset(p_items) AS a (
        n int, job uuid, round int, index int, attempt int, output text, hash text, bytes bigint, excerpts text,
        artifact text, unit json, unit_seconds float8, take_steps int, take_stage boolean
    ) LOOP
        SELECT status, round, open_steps, stage_attempt, after_steps, on_failure, failed_steps, places, out_steps, held_steps,
            paused_at IS NULL AND run_at <= planq_now() AS is_free INTO j
        FROM jobs WHERE id = i.job FOR NO KEY UPDATE;
        CONTINUE WHEN NOT FOUND OR j.status NOT IN ('executing', 'input_required') OR j.round <> i.round;
        v_out := 0;
        IF j.places IS NOT NULL THEN
            SELECT -count(*) INTO v_out FROM steps WHERE job_id = i.job AND index = i.index AND status = v_running;
        END IF;
        UPDATE steps SET
            status = 'succeeded', output = i.output::json, payload_hash = decode(i.hash, 'hex'),
            output_bytes = i.bytes, excerpts = i.excerpts::json, error = NULL, in_doubt = false,
            finished_at = greatest(started_at, planq_clock() - make_interval(secs => coalesce(i.unit_seconds, 0))),
            wake_at = NULL, wakes = 0, deadline = NULL
        WHERE job_id = i.job AND round = i.round AND index = i.index AND attempt = i.attempt
          AND (status = v_running OR (status = v_waiting AND elicitation_id IS NULL AND (waits_for IS NULL OR joined)))
        RETURNING * INTO s;
        CONTINUE WHEN NOT FOUND;
        v_steps := 1;
        v_ready := '{}';
        v_taken := '{}';
        v_stage := NULL;
        v_budget := CASE WHEN j.is_free THEN i.take_steps ELSE 0 END;
        IF i.hash IS NOT NULL OR i.artifact IS NOT NULL THEN
            PERFORM planq_keep_outcome(s.tenant_id, i.job, i.index, s.tool_name, i.output::json,
                                       decode(i.hash, 'hex'), i.artifact::json);
        END IF;
        v_events := v_events || ROW(s.tenant_id, i.job, 'step_succeeded',
            planq_success_told(i.round, i.index, i.attempt))::planq_event;
        IF i.unit IS NOT NULL AND j.is_free THEN
            FOR r IN SELECT * FROM json_to_recordset(i.unit) AS u (
                index int, output text, artifact text, seconds float8
            ) LOOP
                EXIT WHEN s.dependents <> ARRAY[r.index];
                UPDATE steps SET
                    status = 'succeeded', pending = 0, attempt = 1, worker_id = p_worker, output = r.output::json,
                    started_at = s.finished_at,
                    finished_at = least(planq_clock(), s.finished_at + make_interval(secs => r.seconds))
                WHERE job_id = i.job AND round = i.round AND index = r.index AND status = v_pending AND pending = 1
                  AND attempt = 0 AND lane = p_lane
                RETURNING * INTO t;
                EXIT WHEN NOT FOUND;
                s := t;
                v_steps := v_steps + 1;
                IF r.artifact IS NOT NULL THEN
                    PERFORM planq_keep_outcome(s.tenant_id, i.job, r.index, s.tool_name, r.output::json, NULL,
                                               r.artifact::json);
                END IF;
                v_events := v_events || planq_step_started(s) || ROW(
                    s.tenant_id, i.job, 'step_succeeded', planq_success_told(i.round, r.index, s.attempt))::planq_event;
            END LOOP;
        END IF;
        v_held := 0;
        v_room := j.places - (j.out_steps + v_out);
        FOREACH v_index IN ARRAY s.dependents LOOP
            t := planq_unlock_one(i.job, i.round, v_index, p_lane, v_budget > 0, p_worker, v_room <= 0);
            IF t.status = 'running' THEN
                v_budget := v_budget - 1;
                v_taken := v_taken || planq_step_claim(t);
                v_events := v_events || planq_step_started(t);
            ELSIF t.wake_at IS NOT NULL THEN
                v_ready := v_ready || json_build_object('index', t.index, 'lane', t.lane, 'tool_name', t.tool_name);
            ELSE
                v_held := v_held + coalesce(t.status = 'ready', false)::int;
                CONTINUE;
            END IF;
            v_out := v_out + 1;
            v_room := v_room - 1;
        END LOOP;
        IF j.held_steps > 0 AND v_room > 0 THEN
            FOR t IN SELECT * FROM planq_let_follow(i.job, v_room, planq_wake_grace(), p_lane, v_budget, p_worker) LOOP
                IF t.status = 'running' THEN
                    v_taken := v_taken || planq_step_claim(t);
                    v_events := v_events || planq_step_started(t);
                ELSE
                    v_ready := v_ready || json_build_object('index', t.index, 'lane', t.lane, 'tool_name', t.tool_name);
                END IF;
                v_out := v_out + 1;
                v_held := v_held - 1;
            END LOOP;
        END IF;
        IF j.open_steps > v_steps THEN
            UPDATE jobs SET open_steps = open_steps - v_steps, out_steps = out_steps + v_out,
                held_steps = held_steps + v_held
            WHERE id = i.job;
        ELSIF planq_ends_with_steps(j.after_steps, j.on_failure, j.failed_steps) THEN
            v_end := planq_end_with_steps(i.job, 0);
            v_events := v_events || v_end;
            j.status := planq_status_told(v_end);
        ELSIF i.take_stage AND j.is_free THEN
            j.status := j.after_steps;
            UPDATE jobs SET open_steps = 1 WHERE id = i.job AND v_steps > 1;
            v_stage := planq_close_and_take_stage(i.job, p_worker, p_seconds);
            v_events := v_events || v_stage.event;
        ELSE
            j.status := planq_close_steps(i.job, v_steps, 0);
        END IF;
        n := i.n;
        result := json_build_object(
            'applied', true, 'status', 'succeeded', 'job_status', j.status, 'steps', v_steps,
            'stage_attempt', coalesce(v_stage.attempt, j.stage_attempt),
            'ready', array_to_json(v_ready), 'taken', array_to_json(v_taken), 'stage', v_stage.claim);
        RETURN NEXT;
    END LOOP;
    PERFORM planq_append_events(v_events);
END $$;

-- Takes one dependency off a step that waits; the last one makes it ready, or it is claimed for `p_worker` at once, where
-- `p_takes` and it is of the lane, its time has come and this worker can run it; where its job's window `is_full` it is held. Returns the step, nulls
-- where it still waits. The caller holds the job's row.
CREATE FUNCTION planq_unlock_one(
    p_job uuid, p_round int, p_index int, p_lane text, p_takes boolean, p_worker uuid, is_full boolean
) RETURNS steps LANGUAGE plpgsql AS $$
DECLARE
    v_pending CONSTANT text := 'pending';
    r record;
    s steps;
BEGIN
    SELECT pending, p_takes AND is_full IS NOT TRUE AND lane = p_lane AND run_at <= planq_now()
        AND planq_can_run(p_worker, lane, tool_name, tool_digest) AS is_taken INTO r FROM steps
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = v_pending;
    IF r.pending > 1 THEN
        UPDATE steps SET pending = pending - 1 WHERE job_id = p_job AND round = p_round AND index = p_index;
    ELSIF r.is_taken THEN
        UPDATE steps SET pending = 0, status = 'running', attempt = attempt + 1, worker_id = p_worker,
            started_at = coalesce(started_at, planq_clock()),
            deadline = planq_now() + make_interval(secs => timeout_seconds)
        WHERE job_id = p_job AND round = p_round AND index = p_index RETURNING * INTO s;
    ELSIF r.pending = 1 THEN
        UPDATE steps SET pending = 0, status = 'ready',
            wake_at = CASE WHEN is_full IS NOT TRUE THEN planq_now() + planq_wake_grace() END
        WHERE job_id = p_job AND round = p_round AND index = p_index RETURNING * INTO s;
    END IF;
    RETURN s;
END $$;

-- The last step of a round has ended in success: opens the stage after it and takes that over, in one. The caller holds
-- the job's row and stores the event.
CREATE FUNCTION planq_close_and_take_stage(p_job uuid, p_worker uuid, p_seconds float8) RETURNS planq_stage
LANGUAGE plpgsql AS $$
DECLARE
    j record;
BEGIN
    UPDATE jobs SET open_steps = open_steps - 1, status = after_steps, open_questions = 0, stage_worker = p_worker,
        places = NULL, out_steps = NULL, held_steps = 0,
        round = planq_next_round(round, after_steps),
        stage_losses = CASE after_steps WHEN 'planning' THEN 0 ELSE stage_losses END,
        rounds_deadline = CASE after_steps WHEN 'planning' THEN deadline END,
        stage_attempt = stage_attempt + 1, deadline = planq_now() + make_interval(secs => p_seconds), wake_at = NULL,
        wakes = 0
    WHERE id = p_job AND open_steps = 1 RETURNING tenant_id, stage_attempt, status INTO j;
    ASSERT FOUND, 'closed_with_open_steps';
    RETURN ROW(planq_stage_claim(p_job), j.stage_attempt, ROW(j.tenant_id, p_job, 'stage_started',
        json_build_object('stage', j.status, 'attempt', j.stage_attempt))::planq_event)::planq_stage;
END $$;

-- The round in which a job stands once the last step of round `p_round` has ended: the next one, where one is planned.
CREATE FUNCTION planq_next_round(p_round int, p_after_steps text) RETURNS int LANGUAGE sql IMMUTABLE AS $$
    SELECT p_round + CASE p_after_steps WHEN 'planning' THEN 1 ELSE 0 END
$$;

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
        WHERE planq_ends_with_steps(j.after_steps, j.on_failure, j.failed_steps)
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
            round = CASE WHEN c.is_last THEN planq_next_round(j.round, j.after_steps) ELSE j.round END,
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

-- StepFailed, many times. Items are `planq_outcome`s with an `error`; `anew` says that the step's child jobs have failed
-- and that it delegates again. Returns rows (n, result), `result` as planq_take does.
CREATE FUNCTION planq_fail_steps(p_items json, p_lane text, p_worker uuid, p_seconds float8)
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
        i.job, i.round, p_lane, i.take_steps, i.take_stage, p_worker, p_seconds)
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

-- StepSucceeded, StepFailed: stores the outcome of an attempt, unlocks dependents or skips what had not begun; children
-- of a step that has ended end with it. With `retry_in` a failed step becomes ready again after that time, unless an
-- earlier step has failed for good. Returns {applied, status, job_status, ready: [{index, lane, tool_name}]}.
CREATE FUNCTION planq_finish_step(i planq_outcome) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_succeeded CONSTANT boolean := i.error IS NULL;
    v_retry_in CONSTANT interval := make_interval(secs => i.retry_in);
    j jobs%ROWTYPE;
    s steps%ROWTYPE;
    v_skipped int := 0;
    v_needing int[];
    v_ended int := 0;
    v_ready json := '[]';
    v_status text;
    v_job_status text;
BEGIN
    IF EXISTS (SELECT FROM steps WHERE job_id = i.job AND round = i.round AND index = i.index AND children IS NOT NULL) THEN
        PERFORM planq_lock_lineages(ARRAY[i.job]);
    END IF;
    SELECT * INTO j FROM jobs WHERE id = i.job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status NOT IN ('executing', 'input_required') OR j.round <> i.round THEN
        RETURN json_build_object('applied', false);
    END IF;
    v_status := CASE
        WHEN v_succeeded THEN 'succeeded'
        WHEN v_retry_in IS NOT NULL AND coalesce(i.index < j.halt_index, true) THEN 'ready'
        ELSE 'failed' END;
    IF j.places IS NOT NULL THEN
        SELECT count(*) INTO v_ended FROM steps
        WHERE job_id = i.job AND index = i.index AND (status = 'running' OR (i.unoffered AND status = 'ready'));
    END IF;
    UPDATE steps SET
        status = v_status,
        output = i.output::json,
        payload_hash = decode(i.hash, 'hex'),
        output_bytes = i.bytes,
        excerpts = i.excerpts::json,
        error = i.error::json,
        in_doubt = v_status = 'ready' AND coalesce(i.in_doubt, false),
        finished_at = CASE WHEN v_status <> 'ready' THEN planq_clock() END,
        run_at = CASE WHEN v_status = 'ready' THEN planq_now() + v_retry_in ELSE run_at END,
        wake_at = CASE WHEN v_status = 'ready' THEN planq_now() + v_retry_in END,
        wakes = 0,
        worker_losses = worker_losses + CASE WHEN i.lost THEN 1 ELSE 0 END,
        worker_id = CASE WHEN v_status = 'ready' THEN NULL ELSE worker_id END,
        deadline = NULL
    WHERE job_id = i.job AND round = i.round AND index = i.index AND attempt = i.attempt
      AND (status = 'running' OR (status = 'waiting' AND elicitation_id IS NULL AND (waits_for IS NULL OR joined)
                                  AND v_succeeded)
           OR (i.unoffered AND status = 'ready' AND tool_away_since IS NOT NULL AND wake_at IS NOT NULL))
    RETURNING * INTO s;
    IF NOT FOUND THEN
        RETURN json_build_object('applied', false);
    END IF;
    IF s.children IS NOT NULL AND v_status <> 'ready' THEN
        PERFORM planq_drop_children(s.children);
    END IF;
    PERFORM planq_append_event(j.tenant_id, i.job, CASE v_status WHEN 'ready' THEN 'step_retrying' ELSE 'step_' || v_status END,
        json_build_object('round', i.round, 'index', i.index, 'attempt', i.attempt, 'error', s.error));
    IF v_status = 'ready' THEN
        RETURN json_build_object('applied', true, 'status', v_status, 'job_status', j.status, 'ready', v_ready);
    END IF;
    IF v_status = 'failed' AND j.on_failure IN ('continue', 'record') THEN
        v_needing := planq_skip_needing(i.job, i.round, i.index);
        v_skipped := cardinality(v_needing);
        v_ready := planq_unlock_past(i.job, i.round, i.index || v_needing);
    ELSIF v_status = 'failed' THEN
        v_skipped := planq_skip_after(i.job, i.round, i.index);
        UPDATE jobs SET halt_index = least(halt_index, i.index) WHERE id = i.job;
    ELSE
        PERFORM planq_keep_outcome(j.tenant_id, i.job, i.index, s.tool_name, s.output, s.payload_hash, i.artifact::json);
        IF cardinality(s.dependents) > 0 THEN
            v_ready := planq_unlock(i.job, i.round, s.dependents);
        END IF;
    END IF;
    IF j.places IS NOT NULL THEN
        v_ready := planq_keep_window(i.job, i.round, v_ended, v_ready);
    END IF;
    v_job_status := planq_close_steps(i.job, 1 + v_skipped, CASE WHEN v_status = 'failed' THEN 1 ELSE 0 END);
    RETURN json_build_object('applied', true, 'status', v_status, 'job_status', v_job_status,
        'stage_attempt', j.stage_attempt, 'ready', v_ready);
END $$;

-- Takes one dependency off each dependent; returns those that became ready. The caller holds the job's row.
CREATE FUNCTION planq_unlock(p_job uuid, p_round int, p_dependents int[]) RETURNS json LANGUAGE sql AS $$
    WITH unlocked AS (
        UPDATE steps SET
            pending = pending - 1,
            status = CASE WHEN pending = 1 THEN 'ready' ELSE status END,
            wake_at = CASE WHEN pending = 1 THEN planq_now() + planq_wake_grace() END
        WHERE job_id = p_job AND round = p_round AND index = ANY (p_dependents) AND status = 'pending'
        RETURNING index, lane, tool_name, status, path
    )
    SELECT coalesce(
        json_agg(json_build_object('index', index, 'lane', lane, 'tool_name', tool_name) ORDER BY path DESC, index)
            FILTER (WHERE status = 'ready'), '[]')
    FROM unlocked
$$;

-- SkipAfter: the sequence would have halted at `p_index`, so nothing later starts; neither does what waits for a step
-- that will not run (only an explicit depends_on can name a later step). A step that has joined has begun, so it goes
-- on, as one that runs does. Returns how many steps were skipped. The caller holds the job's row.
CREATE FUNCTION planq_skip_after(p_job uuid, p_round int, p_index int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_count int;
    v_out int;
    v_held int;
BEGIN
    -- Claims take a single step and hold no job: what is claimed in this moment goes on, and dooms nothing.
    SELECT count(*) FILTER (WHERE wake_at IS NOT NULL AND NOT joined), count(*) FILTER (WHERE wake_at IS NULL)
    INTO v_out, v_held FROM (
        SELECT wake_at, joined FROM steps WHERE job_id = p_job AND round = p_round AND index > p_index AND status = 'ready'
        ORDER BY index FOR NO KEY UPDATE
    ) r;
    IF v_out > 0 OR v_held > 0 THEN
        UPDATE jobs SET out_steps = out_steps - v_out, held_steps = held_steps - v_held
        WHERE id = p_job AND places IS NOT NULL;
    END IF;
    WITH RECURSIVE doomed (index) AS (
        SELECT index FROM steps
        WHERE job_id = p_job AND round = p_round
          AND (index = p_index OR (index > p_index AND status IN ('pending', 'ready') AND NOT joined))
        UNION
        SELECT unnest(s.dependents) FROM doomed d
        JOIN steps s ON s.job_id = p_job AND s.round = p_round AND s.index = d.index
    )
    UPDATE steps SET status = 'skipped', finished_at = planq_clock(), wake_at = NULL
    WHERE job_id = p_job AND round = p_round AND status IN ('pending', 'ready') AND NOT joined
      AND index IN (SELECT index FROM doomed);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- SkipNeeding: a failure is recorded, so what needs the output of the step `p_index` cannot run, nor what needs the
-- output of that. Returns which steps were skipped. The caller holds the job's row.
CREATE FUNCTION planq_skip_needing(p_job uuid, p_round int, p_index int) RETURNS int[] LANGUAGE plpgsql AS $$
DECLARE
    v_skipped int[];
BEGIN
    WITH RECURSIVE doomed (index, by) AS (
        SELECT d.index, p_index FROM steps f CROSS JOIN LATERAL unnest(f.dependents) AS u (index)
        JOIN steps d ON d.job_id = p_job AND d.round = p_round AND d.index = u.index
        WHERE f.job_id = p_job AND f.round = p_round AND f.index = p_index AND d.status = 'pending'
          AND p_index = ANY (d.inputs)
        UNION
        SELECT d.index, f.index FROM doomed x
        JOIN steps f ON f.job_id = p_job AND f.round = p_round AND f.index = x.index
        CROSS JOIN LATERAL unnest(f.dependents) AS u (index)
        JOIN steps d ON d.job_id = p_job AND d.round = p_round AND d.index = u.index
        WHERE d.status = 'pending' AND f.index = ANY (d.inputs)
    ), skipped AS (
        UPDATE steps s SET status = 'skipped', finished_at = planq_clock(), wake_at = NULL,
            error = json_build_object('code', 'skipped', 'message',
                format('not run: it needs the output of $%s, which has none', x.by), 'details', '{}'::json)
        FROM (SELECT index, min(by) AS by FROM doomed GROUP BY index) x
        WHERE s.job_id = p_job AND s.round = p_round AND s.index = x.index
        RETURNING s.index
    )
    SELECT coalesce(array_agg(k.index), '{}') INTO v_skipped FROM skipped k;
    RETURN v_skipped;
END $$;

-- Takes off what waits only for its turn the dependencies on the steps `p_ended`: one has failed, and the others were skipped
-- with it just now. What was skipped before, and needs the output of this one, too, has been taken off already.
-- Returns those that became ready, as planq_unlock does. The caller holds the job's row.
CREATE FUNCTION planq_unlock_past(p_job uuid, p_round int, p_ended int[]) RETURNS json LANGUAGE sql AS $$
    WITH ended (index) AS (
        SELECT unnest(p_ended)
    ), freed AS (
        SELECT u.index, count(*)::int AS by
        FROM ended x JOIN steps f ON f.job_id = p_job AND f.round = p_round AND f.index = x.index
        CROSS JOIN LATERAL unnest(f.dependents) AS u (index) GROUP BY u.index
    ), unlocked AS (
        UPDATE steps s SET
            pending = s.pending - r.by,
            status = CASE WHEN s.pending = r.by THEN 'ready' ELSE s.status END,
            wake_at = CASE WHEN s.pending = r.by THEN planq_now() + planq_wake_grace() END
        FROM freed r
        WHERE s.job_id = p_job AND s.round = p_round AND s.index = r.index AND s.status = 'pending'
        RETURNING s.index, s.lane, s.tool_name, s.status, s.path
    )
    SELECT coalesce(
        json_agg(json_build_object('index', index, 'lane', lane, 'tool_name', tool_name) ORDER BY path DESC, index)
            FILTER (WHERE status = 'ready'), '[]')
    FROM unlocked
$$;

-- Counts `p_closed` steps off the job, `p_failed` of which have failed; the last one opens the stage after the round, or ends
-- the job. A failure that is only recorded is none of the job's. Returns the job's status. The caller holds the job's row,
-- and has told of the steps.
CREATE FUNCTION planq_close_steps(p_job uuid, p_closed int, p_failed int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j record;
    v_failed int;
    v_end planq_event;
BEGIN
    SELECT open_steps, after_steps, on_failure, failed_steps INTO j FROM jobs WHERE id = p_job;
    v_failed := CASE j.on_failure WHEN 'record' THEN 0 ELSE p_failed END;
    IF j.open_steps = p_closed AND planq_ends_with_steps(j.after_steps, j.on_failure, j.failed_steps + v_failed) THEN
        v_end := planq_end_with_steps(p_job, v_failed);
        PERFORM planq_append_events(ARRAY[v_end]);
        RETURN planq_status_told(v_end);
    END IF;
    UPDATE jobs SET
        open_steps = open_steps - p_closed,
        places = CASE WHEN open_steps > p_closed THEN places END,
        out_steps = CASE WHEN open_steps > p_closed THEN out_steps END,
        held_steps = CASE WHEN open_steps > p_closed THEN held_steps ELSE 0 END,
        failed_steps = failed_steps + v_failed,
        status = CASE WHEN open_steps = p_closed THEN after_steps ELSE status END,
        round = CASE WHEN open_steps = p_closed THEN planq_next_round(round, after_steps) ELSE round END,
        stage_losses = CASE WHEN open_steps = p_closed AND after_steps = 'planning' THEN 0 ELSE stage_losses END,
        rounds_deadline = CASE WHEN open_steps = p_closed AND after_steps = 'planning' THEN deadline END,
        open_questions = CASE WHEN open_steps = p_closed THEN 0 ELSE open_questions END,
        wake_at = CASE WHEN open_steps = p_closed THEN planq_now() + planq_wake_grace() END,
        wakes = 0,
        deadline = CASE WHEN open_steps = p_closed THEN NULL ELSE deadline END
    WHERE id = p_job RETURNING status INTO j;
    RETURN j.status;
END $$;

-- Whether a job ends with the last step of its round, without a stage: nobody is asked for an answer, or a step has failed
-- whose failure is the job's. `p_failed` counts the failed ones.
CREATE FUNCTION planq_ends_with_steps(p_after_steps text, p_on_failure text, p_failed int) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_after_steps = 'completed' OR (p_on_failure = 'fail' AND p_failed > 0)
$$;

-- JobEnded, with the last step of its round: it has failed, or answers as it was asked to. `p_failed` of its steps have failed
-- just now. Who waits hears of it with the commit, over the channel `planq_ended`. Returns the event, for the caller to store
-- after those of the steps. The caller holds the job's row, whose steps have all ended.
CREATE FUNCTION planq_end_with_steps(p_job uuid, p_failed int) RETURNS planq_event LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    j record;
    s record;
    v_status text := 'completed';
    v_error json;
    v_output json;
    v_answer text;
BEGIN
    SELECT tenant_id, round, respond, on_failure, failed_steps + p_failed AS failed_steps INTO j FROM jobs WHERE id = p_job;
    IF j.failed_steps > 0 THEN
        v_error := planq_first_failure(p_job);
        v_status := CASE j.on_failure WHEN 'fail' THEN 'failed' ELSE v_status END;
    END IF;
    IF v_status = 'completed' AND j.respond = 'output' THEN
        SELECT o.status, o.output, p.preview INTO s
        FROM steps o LEFT JOIN payloads p ON p.tenant_id = o.tenant_id AND p.hash = o.payload_hash
        WHERE o.job_id = p_job AND o.round = j.round ORDER BY o.index DESC LIMIT 1;
        IF s.status = 'succeeded' THEN
            v_output := s.output;
            v_answer := planq_output_text(s.output, s.preview);
        END IF;
    END IF;
    UPDATE jobs SET
        status = v_status, error = v_error, output = v_output, answer = v_answer, failed_steps = j.failed_steps,
        open_steps = 0, open_questions = 0, places = NULL, out_steps = NULL, held_steps = 0, deadline = NULL,
        wake_at = NULL, wakes = 0, paused_at = NULL, finished_at = planq_clock()
    WHERE id = p_job AND status IN ('executing', 'input_required');
    ASSERT FOUND, 'ended_twice';
    PERFORM pg_notify('planq_ended', p_job::text);
    RETURN ROW(j.tenant_id, p_job, 'job_' || v_status, planq_end_told(v_status, v_error))::planq_event;
END $$;

-- The status of a job that an event tells the end of.
CREATE FUNCTION planq_status_told(p_end planq_event) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT substr(p_end.kind, length('job_') + 1)
$$;

-- The text of an output, or of the preview of a large one: a text itself, what is wrapped as `{"text": ...}`, else its JSON.
-- Of JSON that holds \u0000 nothing can be taken apart: its text is the JSON then.
CREATE FUNCTION planq_output_text(p_output json, p_preview json) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_output json := p_output;
BEGIN
    IF p_preview IS NOT NULL THEN
        v_output := p_preview->'value';
    END IF;
    RETURN CASE json_typeof(v_output)
        WHEN 'null' THEN NULL
        WHEN 'string' THEN v_output #>> '{}'
        WHEN 'object' THEN CASE WHEN json_typeof(v_output->'text') = 'string' AND (SELECT count(*) FROM json_object_keys(v_output)) = 1
            THEN v_output->>'text' ELSE v_output::text END
        ELSE v_output::text END;
EXCEPTION WHEN untranslatable_character OR invalid_text_representation THEN
    RETURN v_output::text;
END $$;

-- Keeps what hangs on a large or structured output beside its step: its artifacts, the reference to its payload, and its
-- `content`. `p_artifact` has an `id` where the output itself is an artifact; what is kept beside the output stands in its
-- array `beside`: each as `p_artifact`, with its own `body` (JSON in a text) or `hash` (hexadecimal).
CREATE FUNCTION planq_keep_outcome(
    p_tenant text, p_job uuid, p_index int, p_tool_name text, p_output json, p_hash bytea, p_artifact json
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_beside json;
BEGIN
    IF p_artifact->>'content' IS NOT NULL THEN
        UPDATE steps SET content = p_artifact->>'content'
        WHERE job_id = p_job AND index = p_index AND status = 'succeeded' AND content IS NULL;
    END IF;
    IF p_hash IS NOT NULL THEN
        PERFORM planq_touch_payload(p_tenant, p_hash);
    END IF;
    IF p_artifact->>'id' IS NOT NULL THEN
        PERFORM planq_add_artifact(p_tenant, p_job, p_index, p_tool_name, p_artifact, p_output, p_hash);
    END IF;
    FOR v_beside IN SELECT value FROM json_array_elements(p_artifact->'beside') LOOP
        IF v_beside->>'hash' IS NOT NULL THEN
            PERFORM planq_touch_payload(p_tenant, decode(v_beside->>'hash', 'hex'));
        END IF;
        PERFORM planq_add_artifact(p_tenant, p_job, p_index, p_tool_name, v_beside, (v_beside->>'body')::json,
                                   decode(v_beside->>'hash', 'hex'));
    END LOOP;
END $$;

-- Adds an artifact of a step, as the next version of its id: {id, skill_id, type, metadata, media_type}, `metadata` as JSON in a text,
-- for reading JSON that holds the character NUL is an error. A transaction that adds a version of the same id at the same moment
-- waits for the other, and gets the one after it.
CREATE FUNCTION planq_add_artifact(
    p_tenant text, p_job uuid, p_index int, p_tool_name text, p_artifact json, p_body json, p_hash bytea
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOOP
        INSERT INTO artifacts (tenant_id, id, version, job_id, step_index, tool_name, skill_id, type, metadata, body,
                               payload_hash, media_type)
        SELECT p_tenant, p_artifact->>'id', coalesce(max(a.version), 0) + 1, p_job, p_index, p_tool_name,
               p_artifact->>'skill_id', p_artifact->>'type', (p_artifact->>'metadata')::json, p_body,
               p_hash, p_artifact->>'media_type'
        FROM artifacts a WHERE a.tenant_id = p_tenant AND a.id = p_artifact->>'id'
        ON CONFLICT (tenant_id, id, version) DO NOTHING;
        EXIT WHEN FOUND;
    END LOOP;
END $$;

-- Called in every transaction that makes a reference to a payload, after it has made it: from now on nobody collects the
-- payload for an hour, and later the reference keeps it. Where it has just been collected the transaction fails, with a
-- code that says to try again (the attempt then puts the payload anew). Null is no reference.
CREATE FUNCTION planq_touch_payload(p_tenant text, p_hash bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- One that was touched a moment ago is not locked: several are touched in the order of their jobs, and of two such
    -- transactions each would wait for the other.
    PERFORM FROM payloads WHERE tenant_id = p_tenant AND hash = p_hash AND created_at > planq_now() - planq_touch_grace();
    IF FOUND THEN
        RETURN;
    END IF;
    UPDATE payloads SET created_at = planq_now() WHERE tenant_id = p_tenant AND hash = p_hash;
    IF NOT FOUND AND p_hash IS NOT NULL THEN
        RAISE EXCEPTION 'payload % is not stored', encode(p_hash, 'hex') USING ERRCODE = 'io_error';
    END IF;
END $$;
