-- Unlock: what the end of a step does to those that wait for it.
--
-- planq_unlock_steps   takes it off what they wait for; those that wait for nothing more may begin
-- planq_skip_after     after a failure nothing later begins
-- planq_skip_needing   or what needs the failed step's output does not

-- Takes ended steps off what the `p_dependents` wait for, as many as are `awaited`. What waits for nothing more is ready:
-- of that, in the order of `p_dependents`, the items take over what their `p_rooms` say, as far as `p_worker` can run it; what
-- is beyond the room of a job with a window is held, and where there is room left some of the held ones follow.
-- The caller holds the jobs' rows, and counts what is out and held.
CREATE FUNCTION planq_unlock_steps(p_dependents planq_step_ref[], p_rooms planq_room[], p_pool text, p_worker uuid)
RETURNS SETOF planq_unlocked LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_pending CONSTANT text[] := planq_step_pending();
    v_found planq_unlocked[];
    v_takes planq_step_ref[];
    v_taken planq_taken[];
    r record;
BEGIN
    WITH found AS (
        SELECT d.*, s.pending - d.awaited AS pending, s.pool, s.tool_name, r.takes, r.room, s.run_at <= planq_now() AS is_due
        FROM (
            SELECT max(t.n) AS n, t.job, t.round, t.index, sum(t.awaited)::int AS awaited, max(t.place) AS place
            FROM unnest(p_dependents) WITH ORDINALITY AS t (n, job, round, index, awaited, place) GROUP BY t.job, t.round, t.index
        ) d
        JOIN unnest(p_rooms) r ON r.n = d.n
        CROSS JOIN LATERAL (
            SELECT o.pending, o.pool, o.tool_name, o.run_at FROM steps o
            WHERE o.job_id = d.job AND o.index = d.index AND o.round = d.round AND o.status = ANY (v_pending) OFFSET 0
        ) s
    ), placed AS (
        SELECT f.*, f.pending = 0 AND coalesce(count(*) FILTER (WHERE f.pending = 0) OVER w <= f.room, true) AS is_out,
            f.pending = 0 AND f.pool = p_pool AND f.is_due AS is_mine
        FROM found f WINDOW w AS (PARTITION BY f.job ORDER BY f.place)
    ), chosen AS (
        SELECT p.*, p.is_out AND p.is_mine
            AND count(*) FILTER (WHERE p.is_out AND p.is_mine) OVER (PARTITION BY p.n ORDER BY p.place) <= p.takes AS is_taken
        FROM placed p
    )
    SELECT array_agg(ROW(n, job, index, awaited, pending = 0, pool, tool_name, NULL, NULL,
            (pending = 0 AND NOT is_out)::int)::planq_unlocked ORDER BY place),
        array_agg(ROW(n, job, round, index, awaited)::planq_step_ref ORDER BY place) FILTER (WHERE is_taken)
    INTO v_found, v_takes FROM chosen;
    IF v_takes IS NOT NULL THEN
        v_taken := ARRAY(SELECT t FROM planq_take_steps(v_takes, false, p_worker) t);
    END IF;
    IF coalesce(cardinality(v_found), 0) > coalesce(cardinality(v_taken), 0) THEN
        UPDATE steps s SET pending = s.pending - f.awaited,
            status = CASE WHEN f.may_begin THEN 'ready' ELSE s.status END,
            wake_at = CASE WHEN f.may_begin AND f.held = 0 THEN planq_now() + planq_wake_grace() END
        FROM unnest(v_found) f
        WHERE f.n BETWEEN 0 AND 9999 AND s.job_id = f.job AND s.index = f.index
          AND NOT EXISTS (SELECT FROM unnest(v_taken) t WHERE t.job = f.job AND t.index = f.index);
    END IF;
    v_found := ARRAY(
        SELECT ROW(f.n, f.job, f.index, f.awaited, true, f.pool, f.tool_name, t.effect, t.claim, f.held)::planq_unlocked
        FROM unnest(v_found) WITH ORDINALITY AS f (n, job, index, awaited, may_begin, pool, tool_name, effect, claim, held, place)
        LEFT JOIN unnest(v_taken) t ON t.job = f.job AND t.index = f.index WHERE f.may_begin ORDER BY f.place);
    RETURN QUERY SELECT * FROM unnest(v_found);
    -- The last item of a job is given those that follow.
    FOR r IN
        SELECT max(o.n) AS n, o.job, max(o.room) - coalesce(max(f.out), 0) AS room,
            sum(o.takes)::int - coalesce(max(f.taken), 0) AS takes
        FROM unnest(p_rooms) o
        LEFT JOIN (
            SELECT u.job, (count(*) FILTER (WHERE u.held = 0))::int AS out, count(u.claim)::int AS taken
            FROM unnest(v_found) u GROUP BY u.job
        ) f ON f.job = o.job
        WHERE o.held > 0 GROUP BY o.job
    LOOP
        IF r.room > 0 THEN
            RETURN QUERY SELECT r.n, f.job, f.index, f.awaited, f.may_begin, f.pool, f.tool_name, f.effect, f.claim, f.held
            FROM planq_let_follow(r.job, r.room, planq_wake_grace(), p_pool, r.takes, p_worker) f;
        END IF;
    END LOOP;
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
