-- Load: how much may be out at once, of a job and of all batches; what is beyond waits in the database.
--
-- planq_window      how much work of a priority keeps the live workers busy
-- planq_places      how many steps of one job may be out; the rest is held (ready, without `wake_at`)
-- planq_let_follow  steps that are held take places that have come free, in the commit that frees them
-- planq_keep_window   the same where a transition of another kind has made steps ready
-- planq_open_windows  for the sweeper: what freed places otherwise, workers that have come
--
-- `enable_seqscan = off`: a session keeps its plans, also those that it made while the tables were all but empty (claim.sql).

-- How much of a priority keeps the live workers busy. Each slot may carry out one, while another one waits for it: so no
-- slot is idle between two looks, and the broker's queues stay short. The slots of a worker whose loop lags count half. Of
-- bulk work it is half as much while interactive work waits longer than a wake-up may take, in any lane. 0 without workers.
CREATE FUNCTION planq_window(p_priority text, p_lease_seconds float8) RETURNS int LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_most float8;
BEGIN
    SELECT sum(CASE WHEN w.lag_ms < 500 THEN 2 ELSE 1 END * CASE p_priority WHEN 'bulk' THEN w.bulk_capacity ELSE w.capacity END)
    INTO v_most FROM workers w
    WHERE 'io' = ANY (w.lanes) AND w.heartbeat_at > planq_now() - make_interval(secs => p_lease_seconds);
    IF v_most > 0 AND p_priority = 'bulk' AND planq_interactive_waits() THEN
        v_most := ceil(v_most / 2);
    END IF;
    RETURN coalesce(v_most, 0);
END $$;

-- Jobs with fewer open steps have no window, and pay nothing for one; no window is smaller.
CREATE FUNCTION planq_least_window() RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT 64 $$;

-- How many steps of one job may be out, ready or running, while others of it are held. A worker whose lease has ended a
-- moment ago makes no difference here.
CREATE FUNCTION planq_places(p_priority text) RETURNS int LANGUAGE sql STABLE AS $$
    SELECT greatest(planq_least_window(), planq_window(p_priority, 15))
$$;

-- Lets up to `p_most` held steps of a job follow, those with the longest path behind them first; up to `p_takes` of the lane
-- are claimed for `p_worker`, the others are published by the caller, or by the sweeper after `p_grace`. The caller holds
-- the job's row and counts them. Returns them.
CREATE FUNCTION planq_let_follow(
    p_job uuid, p_most int, p_grace interval, p_lane text, p_takes int, p_worker uuid
) RETURNS SETOF steps
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_takes int := p_takes;
    v_indices CONSTANT int[] := ARRAY(
        SELECT index FROM steps WHERE job_id = p_job AND status = 'ready' AND wake_at IS NULL
        ORDER BY path DESC, index LIMIT p_most);
    v_index int;
    s steps;
BEGIN
    FOREACH v_index IN ARRAY v_indices LOOP
        SELECT * INTO s FROM steps WHERE job_id = p_job AND index = v_index;
        IF v_takes > 0 AND s.lane = p_lane AND s.run_at <= planq_now()
           AND planq_can_run(p_worker, s.lane, s.tool_name, s.tool_digest) THEN
            v_takes := v_takes - 1;
            UPDATE steps SET status = 'running', attempt = attempt + 1, worker_id = p_worker, wakes = 0,
                started_at = coalesce(started_at, planq_clock()),
                deadline = planq_now() + make_interval(secs => timeout_seconds)
            WHERE job_id = p_job AND index = v_index RETURNING * INTO s;
        ELSE
            UPDATE steps SET wakes = 0, wake_at = greatest(run_at, planq_now() + p_grace)
            WHERE job_id = p_job AND index = v_index RETURNING * INTO s;
        END IF;
        RETURN NEXT s;
    END LOOP;
END $$;

-- After a transition of a job in which `p_ended` steps that were out have ended, and those of `p_ready`, as planq_unlock
-- returns them, have become ready: holds what is beyond the window, or lets others follow. Returns those that are out. The
-- caller holds the job's row.
CREATE FUNCTION planq_keep_window(p_job uuid, p_round int, p_ended int, p_ready json) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    j record;
    v_out json[] := '{}';
    v_room int;
    v_held int := 0;
    r record;
BEGIN
    SELECT places, out_steps, held_steps INTO j FROM jobs WHERE id = p_job;
    IF j.places IS NULL THEN
        RETURN p_ready;
    END IF;
    v_room := greatest(j.places - (j.out_steps - p_ended), 0);
    FOR r IN SELECT t.value, (t.value->>'index')::int AS index FROM json_array_elements(p_ready) t LOOP
        IF v_room > 0 THEN
            v_room := v_room - 1;
            v_out := v_out || r.value;
        ELSE
            UPDATE steps SET wake_at = NULL WHERE job_id = p_job AND round = p_round AND index = r.index;
            v_held := v_held + 1;
        END IF;
    END LOOP;
    IF v_room > 0 AND j.held_steps > 0 THEN
        FOR r IN SELECT * FROM planq_let_follow(p_job, v_room, planq_wake_grace(), '', 0, NULL) LOOP
            v_out := v_out || json_build_object('index', r.index, 'lane', r.lane, 'tool_name', r.tool_name);
            v_held := v_held - 1;
        END LOOP;
    END IF;
    UPDATE jobs SET out_steps = out_steps - p_ended + cardinality(v_out), held_steps = held_steps + v_held WHERE id = p_job;
    RETURN array_to_json(v_out);
END $$;

-- Gives a job whose steps have been opened its window, and holds those of its ready steps that are beyond, none of which
-- has been claimed. Returns it, nulls and 0 where the job has none. The caller holds the job's row, and writes that into it.
CREATE FUNCTION planq_begin_window(p_job uuid, p_round int, p_open int, p_priority text) RETURNS planq_windowed
LANGUAGE plpgsql AS $$
DECLARE
    w planq_windowed := ROW(NULL, NULL, 0);
BEGIN
    IF p_open > planq_least_window() THEN
        w.places := planq_places(p_priority);
        UPDATE steps SET wake_at = NULL WHERE job_id = p_job AND round = p_round AND index IN (
            SELECT s.index FROM steps s WHERE s.job_id = p_job AND s.round = p_round AND s.status = 'ready'
            ORDER BY s.path DESC, s.index OFFSET w.places);
        GET DIAGNOSTICS w.held_steps = ROW_COUNT;
        SELECT count(*) INTO w.out_steps FROM steps s
        WHERE s.job_id = p_job AND s.round = p_round AND s.status = 'ready' AND s.wake_at IS NOT NULL;
    END IF;
    RETURN w;
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

-- Whether interactive work was published a moment ago or longer, and nobody has claimed it.
CREATE FUNCTION planq_interactive_waits() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM jobs
        WHERE planq_is_unclaimed(wake_at, wakes)
          AND planq_is_unfinished(status)
          AND status IN ('queued', 'planning', 'responding')
          AND run_at <= planq_now() AND stage_worker IS NULL AND paused_at IS NULL AND priority = 'interactive'
    ) OR EXISTS (
        SELECT FROM steps s JOIN jobs j ON j.id = s.job_id
        WHERE s.status IN ('ready', 'waiting') AND s.status = 'ready' AND planq_is_unclaimed(s.wake_at, s.wakes)
          AND s.run_at <= planq_now() AND j.paused_at IS NULL AND j.priority = 'interactive'
    )
$$;
