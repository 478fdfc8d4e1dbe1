-- Finish: one attempt at a step ends, in one commit that is fenced by the attempt's number and, where a worker sends it, its owner.
--
-- planq_succeed_steps   many steps have succeeded, each with the rest of its unit; what waits for them may begin
--                       (planq_unlock_steps), and the last one of a round ends it (planq_close_steps)
-- planq_fail_steps      many have failed: each is tried again, or fails and skips what it halts, or what needs its output
-- planq_finish_step     one end of one step, for all that is not on the hot path
--
-- Lock order everywhere: the job's row first, then its steps. Claims lock a single step and never wait for a job. Every
-- transition is one round trip, guarded by the state and the attempt it expects, and says whether it applied; its
-- executable specification is a pure model that property tests hold equal to it. Items are as in plan.sql.

-- StepSucceeded, many times, each followed by the rest of its unit. Items are `planq_outcome`s without an error. Returns rows
-- (n, result) of those that applied, `result` as planq_take does with {steps: how many have succeeded}. Without a `p_worker`
-- nothing is taken over. Of several items of one job the last one takes the stage.
--
-- The jobs are locked by a statement of its own: those after it see what others have committed while it waited.
CREATE FUNCTION planq_succeed_steps(p_items json, p_pool text, p_worker uuid, p_seconds float8)
RETURNS TABLE (n int, result json) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_running CONSTANT text[] := planq_step_running();
    v_waiting CONSTANT text[] := planq_step_waiting();
    v_pending CONSTANT text[] := planq_step_pending();
    v_jobs planq_locked[];
    v_done planq_succeeded[];
    v_more planq_succeeded[];
    v_waiters int;
    v_has_more boolean;
    v_is_kept boolean;
    v_are_pure boolean;
    v_unlocked planq_unlocked[];
    v_closed planq_closed[];
    u planq_unlocked;
    c planq_closed;
BEGIN
    SELECT array_agg(ROW(l.id, l.round, l.stage_attempt, l.room, l.held_steps, l.is_free)::planq_locked) INTO v_jobs FROM (
        SELECT id, status, round, stage_attempt, places - out_steps AS room, held_steps,
            paused_at IS NULL AND run_at <= planq_now() AND p_worker IS NOT NULL AS is_free
        FROM jobs WHERE id = ANY (ARRAY(SELECT i.job FROM json_to_recordset(p_items) AS i (job uuid))) ORDER BY id FOR NO KEY UPDATE
    ) l WHERE l.status = 'executing';
    -- A step that runs, or waits for a timer or for its child jobs. `unit_seconds` of the time up to now belong to its unit.
    WITH done AS (
        UPDATE steps s SET
            status = 'succeeded', output = i.output::json, payload_hash = decode(i.hash, 'hex'),
            output_bytes = i.bytes, excerpts = i.excerpts::json, error = NULL, in_doubt = false,
            finished_at = greatest(s.started_at, planq_clock() - make_interval(secs => coalesce(i.unit_seconds, 0))),
            wake_at = NULL, wakes = 0, deadline = NULL
        FROM (
            SELECT i.*, CASE WHEN j.room IS NOT NULL THEN (
                SELECT o.status = ANY (v_running) FROM steps o WHERE o.job_id = i.job AND o.index = i.index
            ) ELSE false END AS was_out
            FROM json_to_recordset(p_items) AS i (
                n int, job uuid, round int, index int, attempt int, output text, hash text, bytes bigint, excerpts text, artifact text,
                unit json, unit_seconds float8, worker uuid
            ) JOIN unnest(v_jobs) j ON j.job = i.job AND j.round = i.round
            WHERE i.n BETWEEN 0 AND 9999
            OFFSET 0
        ) i
        WHERE s.job_id = i.job AND s.index = i.index
          AND s.round = i.round AND s.attempt = i.attempt
          AND ((s.status = ANY (v_running) AND coalesce(s.worker_id = coalesce(p_worker, i.worker), coalesce(p_worker, i.worker) IS NULL))
              OR (s.status = ANY (v_waiting) AND s.question_id IS NULL AND (s.waits_for IS NULL OR s.joined)))
        RETURNING i.n, s.job_id, s.round, s.index, s.attempt, s.tenant_id, s.dependents, s.finished_at, i.was_out,
            s.effect = 'pure' AND s.children IS NULL AS is_pure, i.unit IS NOT NULL AS has_more,
            i.artifact IS NOT NULL OR i.hash IS NOT NULL AS is_kept
    ), told AS (
        INSERT INTO events (tenant_id, job_id, kind, data)
        SELECT tenant_id, job_id, 'step_succeeded', planq_success_told(round, index, attempt) FROM done
    )
    SELECT array_agg(ROW(n, job_id, round, index, 0, dependents, finished_at, was_out)::planq_succeeded),
        sum(cardinality(dependents)) + count(*) FILTER (WHERE was_out), bool_or(has_more), bool_or(is_kept), bool_and(is_pure)
    INTO v_done, v_waiters, v_has_more, v_is_kept, v_are_pure FROM done;
    IF v_done IS NULL THEN
        RETURN;
    END IF;
    -- The rest of the units: an item's `unit` lists {index, output, artifact, seconds} of the steps that ran after its own, each the
    -- only one that waits for the one before, and waits for nothing else. Each is claimed and succeeds in one write, as its first
    -- attempt, up to the first one that cannot be claimed: it was skipped, say, or its job is not free.
    IF v_has_more THEN
        WITH asked AS (
            SELECT d.n, d.job, d.round, u.index, u.place::int AS place, u.output, u.artifact, d.finished_at, u.seconds,
                sum(u.seconds) OVER w AS passed,
                s.index IS NOT NULL AND lag(s.dependents, 1, d.dependents) OVER w = ARRAY[u.index] AS fits
            FROM unnest(v_done) d
            JOIN json_to_recordset(p_items) AS i (n int, unit json) ON i.n = d.n
            JOIN unnest(v_jobs) j ON j.job = d.job AND j.is_free
            CROSS JOIN LATERAL ROWS FROM (json_to_recordset(i.unit) AS (index int, output text, artifact text, seconds float8))
                WITH ORDINALITY AS u (index, output, artifact, seconds, place)
            LEFT JOIN LATERAL (
                SELECT o.index, o.dependents FROM steps o
                WHERE o.job_id = d.job AND o.index = u.index AND o.round = d.round AND o.status = ANY (v_pending) AND o.pending = 1
                  AND o.attempt = 0 AND o.pool = p_pool OFFSET 0
            ) s ON true
            WINDOW w AS (PARTITION BY d.n ORDER BY u.place)
        ), chosen AS (
            SELECT a.*, bool_and(a.fits) OVER (PARTITION BY a.n ORDER BY a.place) AS is_done FROM asked a
        ), done AS (
            UPDATE steps s SET
                status = 'succeeded', pending = 0, attempt = 1, worker_id = p_worker, output = c.output::json,
                started_at = least(planq_clock(), c.finished_at + make_interval(secs => c.passed - c.seconds)),
                finished_at = least(planq_clock(), c.finished_at + make_interval(secs => c.passed))
            FROM chosen c
            WHERE c.is_done AND c.n BETWEEN 0 AND 9999 AND s.job_id = c.job AND s.index = c.index
            RETURNING c.n, s.job_id, s.round, s.index, c.place, s.tenant_id, s.tool_name, s.dependents, s.effect, s.finished_at,
                c.artifact IS NOT NULL AS is_kept
        ), told AS (
            INSERT INTO events (tenant_id, job_id, kind, data)
            SELECT d.tenant_id, d.job_id, k.kind, CASE k.kind WHEN 'step_started'
                THEN planq_start_told(d.round, d.index, 1, d.tool_name, p_worker) ELSE planq_success_told(d.round, d.index, 1) END
            FROM done d CROSS JOIN (VALUES ('step_started'), ('step_succeeded')) k (kind) ORDER BY d.job_id, d.n, d.place, k.kind
        )
        SELECT array_agg(ROW(n, job_id, round, index, place, dependents, finished_at, false)::planq_succeeded),
            v_waiters + coalesce(sum(cardinality(dependents)) - count(*), 0), v_is_kept OR coalesce(bool_or(is_kept), false),
            v_are_pure AND coalesce(bool_and(effect = 'pure'), true)
        INTO v_more, v_waiters, v_is_kept, v_are_pure FROM done;
        v_done := v_done || v_more;
    END IF;
    IF v_is_kept THEN
        PERFORM planq_keep_outcome(s.tenant_id, d.job, d.index, s.tool_name, s.output, s.payload_hash,
            CASE WHEN d.place = 0 THEN i.artifact ELSE (
                SELECT u.artifact FROM json_to_recordset(i.unit) AS u (index int, artifact text) WHERE u.index = d.index) END::json)
        FROM unnest(v_done) d
        JOIN json_to_recordset(p_items) AS i (n int, artifact text, unit json) ON i.n = d.n
        CROSS JOIN LATERAL (
            SELECT o.tenant_id, o.tool_name, o.output, o.payload_hash FROM steps o WHERE o.job_id = d.job AND o.index = d.index OFFSET 0
        ) s
        ORDER BY d.job, d.index;
    END IF;
    IF v_waiters > 0 THEN
        v_unlocked := ARRAY(SELECT f FROM planq_unlock_steps(
            ARRAY(SELECT ROW(d.n, d.job, d.round, w.index, 1)::planq_step_ref
                  FROM unnest(v_done) d CROSS JOIN LATERAL unnest(d.dependents) WITH ORDINALITY AS w (index, place)
                  WHERE NOT EXISTS (SELECT FROM unnest(v_more) m WHERE m.job = d.job AND m.index = w.index)
                  ORDER BY d.n, w.place),
            ARRAY(SELECT ROW(d.n, d.job, CASE WHEN j.is_free THEN coalesce(i.take_steps, 0) ELSE 0 END, j.room + o.freed, j.held)::planq_room
                  FROM unnest(v_done) d
                  JOIN json_to_recordset(p_items) AS i (n int, take_steps int) ON i.n = d.n
                  JOIN unnest(v_jobs) j ON j.job = d.job
                  JOIN (SELECT e.job, (count(*) FILTER (WHERE e.was_out))::int AS freed FROM unnest(v_done) e GROUP BY e.job) o
                      ON o.job = d.job
                  WHERE d.place = 0),
            p_pool, p_worker) f);
    END IF;
    v_closed := ARRAY(SELECT f FROM planq_close_steps(ARRAY(
        SELECT ROW(d.n, d.job, d.steps, 0, coalesce(w.out, 0) - d.freed, coalesce(w.held, 0),
            j.is_free AND coalesce(i.take_stage, false), i.cached)::planq_closing
        FROM (
            SELECT max(e.n) AS n, e.job, count(*) AS steps, count(*) FILTER (WHERE e.was_out) AS freed FROM unnest(v_done) e GROUP BY e.job
        ) d
        JOIN json_to_recordset(p_items) AS i (n int, take_stage boolean, cached planq_cached) ON i.n = d.n
        JOIN unnest(v_jobs) j ON j.job = d.job
        LEFT JOIN (
            SELECT o.job, count(*) FILTER (WHERE o.held <= 0) AS out, sum(o.held) AS held FROM unnest(v_unlocked) o GROUP BY o.job
        ) w ON w.job = d.job
        ORDER BY d.job
    ), p_worker, p_seconds) f);
    RETURN QUERY SELECT d.n, json_build_object(
        'applied', true, 'status', 'succeeded', 'job_status', coalesce(c.status, 'executing'), 'steps', d.steps,
        'stage_attempt', coalesce(c.attempt, j.stage_attempt),
        'ready', coalesce(w.ready, '[]'), 'taken', coalesce(w.taken, '[]'), 'stage', c.claim)
    FROM (SELECT o.n, o.job, count(*) AS steps FROM unnest(v_done) o GROUP BY o.n, o.job) d
    JOIN unnest(v_jobs) j ON j.job = d.job
    LEFT JOIN unnest(v_closed) c ON c.n = d.n
    LEFT JOIN (
        SELECT o.n, json_agg(o.claim) FILTER (WHERE o.claim IS NOT NULL) AS taken,
            json_agg(json_build_object('index', o.index, 'pool', o.pool, 'tool_name', o.tool_name))
                FILTER (WHERE o.claim IS NULL AND o.held <= 0) AS ready
        FROM unnest(v_unlocked) o GROUP BY o.n
    ) w ON w.n = d.n;
    FOREACH u IN ARRAY coalesce(v_unlocked, '{}') LOOP
        v_are_pure := v_are_pure AND coalesce(u.effect = 'pure', true);
    END LOOP;
    FOREACH c IN ARRAY v_closed LOOP
        v_are_pure := v_are_pure AND c.status IN ('executing', 'planning', 'responding');
    END LOOP;
    IF v_are_pure AND p_worker IS NOT NULL THEN
        PERFORM planq_flush_later();
    END IF;
END $$;

-- StepFailed, many times. Items are `planq_outcome`s with an `error`; `anew` says that the step's child jobs have failed
-- and that it delegates again. Returns rows (n, result), `result` as planq_take does.
CREATE FUNCTION planq_fail_steps(p_items json, p_pool text, p_worker uuid, p_seconds float8)
RETURNS TABLE (n int, result json) LANGUAGE plpgsql AS $$
DECLARE
    v_sent planq_outcome;
    v_jobs uuid[];
BEGIN
    v_sent.worker := p_worker;
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
    FROM json_populate_recordset(v_sent, p_items) AS i;
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
#variable_conflict use_variable
DECLARE
    j jobs%ROWTYPE;
    w record;
    v_children uuid[];
    v_result json;
    v_status text;
    v_was_out int := 0;
    v_dependents planq_step_ref[];
    v_skipped int[];
    v_more int := 0;
    v_unlocked planq_unlocked[];
BEGIN
    i.n := 0;
    SELECT s.children INTO v_children FROM steps s WHERE s.job_id = i.job AND s.round = i.round AND s.index = i.index;
    IF v_children IS NOT NULL THEN
        PERFORM planq_lock_lineages(ARRAY[i.job]);
    END IF;
    IF i.error IS NULL THEN
        SELECT r.result INTO v_result FROM planq_succeed_steps(json_build_array(i), NULL, NULL, NULL) r;
        IF v_result IS NOT NULL AND v_children IS NOT NULL THEN
            PERFORM planq_drop_children(v_children);
        END IF;
        RETURN coalesce(v_result, json_build_object('applied', false));
    END IF;
    SELECT * INTO j FROM jobs WHERE id = i.job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status <> 'executing' OR j.round <> i.round THEN
        RETURN json_build_object('applied', false);
    END IF;
    IF j.places IS NOT NULL THEN
        SELECT count(*) INTO v_was_out FROM steps s
        WHERE s.job_id = i.job AND s.index = i.index
          AND (s.status = ANY (planq_step_running()) OR (i.unoffered AND s.status = ANY (planq_step_ready())));
    END IF;
    IF i.retry_in IS NOT NULL AND coalesce(i.index < j.halt_index, true) THEN
        RETURN CASE WHEN planq_retry_step(i)
            THEN json_build_object('applied', true, 'status', 'ready', 'job_status', j.status, 'ready', '[]'::json)
            ELSE json_build_object('applied', false) END;
    ELSIF NOT planq_fail_step(i) THEN
        RETURN json_build_object('applied', false);
    ELSIF j.on_failure IN ('continue', 'record') THEN
        v_skipped := planq_skip_needing(i.job, i.round, i.index);
        v_more := cardinality(v_skipped);
        -- What waited only for its turn. What was skipped before, and needs the output of this one, too, was taken off then.
        SELECT array_agg(ROW(0, i.job, i.round, d.index, d.ended)::planq_step_ref ORDER BY d.path DESC, d.index) INTO v_dependents
        FROM (
            SELECT b.index, b.path, count(*)::int AS ended FROM unnest(i.index || v_skipped) AS x (index)
            CROSS JOIN LATERAL (SELECT a.dependents FROM steps a WHERE a.job_id = i.job AND a.index = x.index OFFSET 0) e
            CROSS JOIN LATERAL unnest(e.dependents) AS u (index)
            CROSS JOIN LATERAL (
                SELECT a.index, a.path FROM steps a
                WHERE a.job_id = i.job AND a.index = u.index AND a.status = ANY (planq_step_pending()) OFFSET 0
            ) b
            GROUP BY b.index, b.path
        ) d;
    ELSE
        v_more := planq_skip_after(i.job, i.round, i.index);
        UPDATE jobs SET halt_index = least(halt_index, i.index) WHERE id = i.job;
    END IF;
    SELECT places - out_steps + v_was_out AS room, held_steps INTO w FROM jobs WHERE id = i.job;
    v_unlocked := ARRAY(SELECT u FROM planq_unlock_steps(
        v_dependents, ARRAY[ROW(0, i.job, 0, w.room, w.held_steps)::planq_room], NULL, NULL) u);
    RETURN (
        SELECT json_build_object('applied', true, 'status', 'failed', 'stage_attempt', j.stage_attempt, 'job_status', c.status,
            'ready', (SELECT coalesce(json_agg(json_build_object('index', u.index, 'pool', u.pool, 'tool_name', u.tool_name)), '[]')
                      FROM unnest(v_unlocked) u WHERE u.held <= 0))
        FROM planq_close_steps(ARRAY(
            SELECT ROW(0, i.job, 1 + v_more, 1, (count(*) FILTER (WHERE u.held <= 0))::int - v_was_out,
                       coalesce(sum(u.held), 0)::int, false, NULL)::planq_closing
            FROM unnest(v_unlocked) u), NULL, NULL) c);
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
      AND ((status = ANY (planq_step_running()) AND coalesce(worker_id = i.worker, i.worker IS NULL))
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
      AND coalesce(worker_id = i.worker, i.worker IS NULL)
    RETURNING tenant_id INTO v_tenant;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM planq_append_event(v_tenant, i.job, 'step_retrying',
        json_build_object('round', i.round, 'index', i.index, 'attempt', i.attempt, 'error', i.error::json));
    RETURN true;
END $$;
