-- Load: how much may be out at once, of a job and of all batches; what is beyond waits in the database.
--
-- planq_window      how much work of a priority keeps the live workers busy
-- planq_places      how many steps of one job may be out; the rest is held (ready, without `wake_at`)
-- planq_let_follow  steps that are held take places that have come free, in the commit that frees them
-- planq_open_windows  for the sweeper: what freed places otherwise, workers that have come

-- How much of a priority keeps the live workers busy. Each slot may carry out one, while another one waits for it: so no
-- slot is idle between two looks, and the broker's queues stay short. The slots of a worker whose loop lags count half. Of
-- bulk work it is half as much while interactive work waits longer than a wake-up may take, in any pool. 0 without workers.
CREATE FUNCTION planq_window(p_priority text) RETURNS int LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_most float8;
BEGIN
    SELECT sum(CASE WHEN w.lag_ms < 500 THEN 2 ELSE 1 END * CASE p_priority WHEN 'bulk' THEN w.bulk_capacity ELSE w.capacity END)
    INTO v_most FROM workers w
    WHERE 'io' = ANY (w.pools) AND w.heartbeat_at > planq_now() - make_interval(secs => w.lease_seconds)
      AND coalesce(w.only_priority, p_priority) = p_priority;
    IF v_most > 0 AND p_priority = 'bulk' THEN  -- apart, for the look is got ready only where it is made
        IF EXISTS (
            SELECT FROM jobs
            WHERE planq_is_unclaimed(wake_at, wakes)
              AND planq_is_unfinished(status)
              AND status IN ('queued', 'planning', 'responding')
              AND run_at <= planq_now() AND stage_worker IS NULL AND paused_at IS NULL AND priority = 'interactive'
        ) OR EXISTS (
            SELECT FROM steps s JOIN jobs j ON j.id = s.job_id
            WHERE s.status = ANY (planq_step_idle()) AND s.status = ANY (planq_step_ready())
              AND planq_is_unclaimed(s.wake_at, s.wakes) AND s.run_at <= planq_now()
              AND j.paused_at IS NULL AND j.priority = 'interactive'
        ) THEN
            v_most := ceil(v_most / 2);
        END IF;
    END IF;
    RETURN coalesce(v_most, 0);
END $$;

-- Jobs with fewer open steps have no window, and pay nothing for one; no window is smaller.
CREATE FUNCTION planq_least_window() RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT 64 $$;

-- How many steps of one job may be out, ready or running, while others of it are held.
CREATE FUNCTION planq_places(p_priority text) RETURNS int LANGUAGE sql STABLE AS $$
    SELECT greatest(planq_least_window(), planq_window(p_priority))
$$;

-- Lets up to `p_most` held steps of a job follow, those with the longest path behind them first; up to `p_takes` of the pool
-- are claimed for `p_worker`, the others are published by the caller, or by the sweeper after `p_grace`. The caller holds
-- the job's row and counts them. Returns them.
CREATE FUNCTION planq_let_follow(
    p_job uuid, p_most int, p_grace interval, p_pool text, p_takes int, p_worker uuid
) RETURNS SETOF planq_unlocked LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_ready CONSTANT text[] := planq_step_ready();
    v_held planq_step_ref[];
    v_takes planq_step_ref[];
    v_taken planq_taken[];
BEGIN
    SELECT array_agg(ROW(0, p_job, h.round, h.index, 0)::planq_step_ref ORDER BY h.place),
        array_agg(ROW(0, p_job, h.round, h.index, 0)::planq_step_ref ORDER BY h.place) FILTER (WHERE h.is_taken)
    INTO v_held, v_takes FROM (
        SELECT s.*, s.pool = p_pool AND s.run_at <= planq_now()
            AND count(*) FILTER (WHERE s.pool = p_pool AND s.run_at <= planq_now()) OVER (ORDER BY s.place) <= p_takes AS is_taken
        FROM (
            SELECT round, index, pool, run_at, row_number() OVER (ORDER BY path DESC, index) AS place FROM steps
            WHERE job_id = p_job AND status = ANY (v_ready) AND wake_at IS NULL ORDER BY path DESC, index LIMIT p_most
        ) s
    ) h;
    IF v_takes IS NOT NULL THEN
        v_taken := ARRAY(SELECT t FROM planq_take_steps(v_takes, false, p_worker) t);
    END IF;
    UPDATE steps SET wakes = 0, wake_at = greatest(run_at, planq_now() + p_grace)
    WHERE job_id = p_job AND status = ANY (v_ready) AND index = ANY (ARRAY(SELECT h.index FROM unnest(v_held) h));
    RETURN QUERY SELECT NULL::int, p_job, h.index, 0, true, s.pool::text, s.tool_name, t.effect, t.claim, -1
    FROM unnest(v_held) WITH ORDINALITY AS h (n, job, round, index, awaited, place)
    CROSS JOIN LATERAL (SELECT o.pool, o.tool_name FROM steps o WHERE o.job_id = p_job AND o.index = h.index OFFSET 0) s
    LEFT JOIN unnest(v_taken) t ON t.index = h.index ORDER BY h.place;
END $$;

-- WindowOpened: lets held steps follow in up to `p_limit` jobs whose windows have room: a step has begun to wait, a worker
-- has come, or something else than the end of a step made room. They are due at once, for the sweeper. Returns how many.
CREATE FUNCTION planq_open_windows(p_limit int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    j record;
    v_places int;
    v_followed int;
    v_count int := 0;
BEGIN
    FOR j IN SELECT id, priority, out_steps FROM jobs
             WHERE held_steps > 0 AND paused_at IS NULL AND out_steps < planq_places(priority)
             ORDER BY id LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        v_places := planq_places(j.priority);
        SELECT count(*) INTO v_followed FROM planq_let_follow(j.id, v_places - j.out_steps, interval '0', '', 0, NULL);
        UPDATE jobs SET places = v_places, out_steps = out_steps + v_followed, held_steps = held_steps - v_followed
        WHERE id = j.id;
        v_count := v_count + v_followed;
    END LOOP;
    RETURN v_count;
END $$;
