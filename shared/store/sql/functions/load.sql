-- Load: how much work that nobody waits for there may be beside the work that somebody waits for.

-- How many bulk jobs may be unfinished now. Each slot that live workers have for bulk work may carry one out, while
-- another one waits for it: so no slot is idle between two admissions, and the broker's queues stay short. It is half as
-- many while interactive work waits longer than a wake-up may take, in any lane; the slots of a worker whose loop lags
-- count half. 0 without workers.
CREATE FUNCTION planq_bulk_window(p_lease_seconds float8 DEFAULT 15) RETURNS int LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_most float8;
BEGIN
    SELECT sum(CASE WHEN w.lag_ms < 500 THEN 2 ELSE 1 END * w.bulk_capacity) INTO v_most FROM workers w
    WHERE 'io' = ANY (w.lanes) AND w.heartbeat_at > planq_now() - make_interval(secs => p_lease_seconds);
    IF v_most > 0 AND planq_interactive_waits() THEN
        v_most := ceil(v_most / 2);
    END IF;
    RETURN coalesce(v_most, 0);
END $$;

-- Whether interactive work was published a moment ago or longer, and nobody has claimed it.
CREATE FUNCTION planq_interactive_waits() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM jobs
        WHERE planq_is_unclaimed(wake_at, wakes)
          AND status IN ('queued', 'planning', 'executing', 'input_required', 'responding')
          AND status IN ('queued', 'planning', 'responding')
          AND run_at <= planq_now() AND stage_worker IS NULL AND paused_at IS NULL AND priority = 'interactive'
    ) OR EXISTS (
        SELECT FROM steps s JOIN jobs j ON j.id = s.job_id
        WHERE s.status IN ('ready', 'waiting') AND s.status = 'ready' AND planq_is_unclaimed(s.wake_at, s.wakes)
          AND s.run_at <= planq_now() AND j.paused_at IS NULL AND j.priority = 'interactive'
    )
$$;
