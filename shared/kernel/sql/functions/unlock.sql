-- Unlock: what the end of a step does to those that wait for it.
--
-- planq_unlock_steps   takes it off what they wait for; those that wait for nothing more may begin
-- planq_skip_after     after a failure nothing later begins
-- planq_skip_needing   or what needs the failed step's output does not

-- Takes ended steps off what the `p_dependents` wait for, one each, or as many as `p_ended` says. What waits for nothing more is ready:
-- of that, in the order of `p_dependents`, the caller takes over what it `p_takes` (null for nothing), as far as its worker can; what
-- is beyond the `p_room` of a job with a window is held, and where there is room left some of the `p_held` follow.
-- The caller holds the job's row, counts what is out and held, and stores the events.
CREATE FUNCTION planq_unlock_steps(
    p_job uuid, p_round int, p_dependents int[], p_ended int[], p_room int, p_held int, p_takes planq_takes
) RETURNS planq_unlocked LANGUAGE plpgsql AS $$
DECLARE
    v_pending CONSTANT text[] := planq_step_pending();
    v_room int := p_room;
    v_takes int := coalesce(p_takes.steps, 0);
    v_out int := 0;
    v_held int := 0;
    v_taken json[] := '{}';
    v_events planq_event[] := '{}';
    v_ready json[] := '{}';
    v_is_pure boolean := true;
    v_index int;
    v_ended int;
    d record;
    s steps;
BEGIN
    FOR n IN 1 .. coalesce(cardinality(p_dependents), 0) LOOP
        v_index := p_dependents[n];
        v_ended := coalesce(p_ended[n], 1);
        SELECT pending, pool, tool_name INTO d FROM steps
        WHERE job_id = p_job AND round = p_round AND index = v_index AND status = ANY (v_pending);
        CONTINUE WHEN NOT FOUND;
        s := NULL;
        IF d.pending > v_ended THEN
            UPDATE steps SET pending = pending - v_ended WHERE job_id = p_job AND round = p_round AND index = v_index;
            CONTINUE;
        ELSIF v_takes > 0 AND d.pool = p_takes.pool AND coalesce(v_room > 0, true) THEN
            s := planq_take_step(p_job, p_round, v_index, p_takes.worker, v_ended, false);
        END IF;
        IF s.job_id IS NOT NULL THEN
            v_takes := v_takes - 1;
            v_taken := v_taken || planq_step_claim(s);
            v_is_pure := v_is_pure AND s.effect = 'pure';
            v_events := v_events || planq_step_started(s);
        ELSIF v_room <= 0 THEN
            UPDATE steps SET pending = 0, status = 'ready' WHERE job_id = p_job AND round = p_round AND index = v_index;
            v_held := v_held + 1;
            CONTINUE;
        ELSE
            UPDATE steps SET pending = 0, status = 'ready', wake_at = planq_now() + planq_wake_grace()
            WHERE job_id = p_job AND round = p_round AND index = v_index;
            v_ready := v_ready || json_build_object('index', v_index, 'pool', d.pool, 'tool_name', d.tool_name);
        END IF;
        v_out := v_out + 1;
        v_room := v_room - 1;
    END LOOP;
    IF p_held > 0 AND v_room > 0 THEN
        FOR s IN SELECT * FROM planq_let_follow(p_job, v_room, planq_wake_grace(), p_takes.pool, v_takes, p_takes.worker) LOOP
            IF s.status = ANY (planq_step_running()) THEN
                v_taken := v_taken || planq_step_claim(s);
                v_is_pure := v_is_pure AND s.effect = 'pure';
                v_events := v_events || planq_step_started(s);
            ELSE
                v_ready := v_ready || json_build_object('index', s.index, 'pool', s.pool, 'tool_name', s.tool_name);
            END IF;
            v_out := v_out + 1;
            v_held := v_held - 1;
        END LOOP;
    END IF;
    RETURN ROW(v_taken, v_events, v_ready, v_out, v_held, v_is_pure)::planq_unlocked;
END $$;

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
        SELECT wake_at, joined FROM steps
        WHERE job_id = p_job AND round = p_round AND index > p_index AND status = ANY (planq_step_ready())
        ORDER BY index FOR NO KEY UPDATE
    ) r;
    IF v_out > 0 OR v_held > 0 THEN
        UPDATE jobs SET out_steps = out_steps - v_out, held_steps = held_steps - v_held
        WHERE id = p_job AND places IS NOT NULL;
    END IF;
    WITH RECURSIVE doomed (index) AS (
        SELECT index FROM steps
        WHERE job_id = p_job AND round = p_round
          AND (index = p_index OR (index > p_index AND status = ANY (planq_step_unstarted()) AND NOT joined))
        UNION
        SELECT unnest(s.dependents) FROM doomed d
        JOIN steps s ON s.job_id = p_job AND s.round = p_round AND s.index = d.index
    )
    UPDATE steps SET status = 'skipped', finished_at = planq_clock(), wake_at = NULL
    WHERE job_id = p_job AND round = p_round AND status = ANY (planq_step_unstarted()) AND NOT joined
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
        SELECT p_index, NULL::int
        UNION
        SELECT d.index, x.index FROM doomed x CROSS JOIN LATERAL (
            SELECT f.dependents FROM steps f WHERE f.job_id = p_job AND f.round = p_round AND f.index = x.index OFFSET 0
        ) e
        CROSS JOIN LATERAL unnest(e.dependents) AS u (index)
        CROSS JOIN LATERAL (
            SELECT s.index FROM steps s WHERE s.job_id = p_job AND s.round = p_round AND s.index = u.index
              AND s.status = ANY (planq_step_pending()) AND x.index = ANY (s.inputs) OFFSET 0
        ) d
    ), skipped AS (
        UPDATE steps s SET status = 'skipped', finished_at = planq_clock(), wake_at = NULL,
            error = json_build_object('code', 'skipped', 'message',
                format('not run: it needs the output of $%s, which has none', x.by), 'details', '{}'::json)
        FROM (SELECT index, min(by) AS by FROM doomed WHERE by IS NOT NULL GROUP BY index) x
        WHERE s.job_id = p_job AND s.round = p_round AND s.index = x.index
        RETURNING s.index
    )
    SELECT coalesce(array_agg(k.index), '{}') INTO v_skipped FROM skipped k;
    RETURN v_skipped;
END $$;
