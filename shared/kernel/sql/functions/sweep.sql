-- Sweep: what the sweeper does for jobs and steps that nobody else moves.
--
-- planq_take_due_wakes        wake-ups that are due, to be published (again)
-- planq_expire_job, planq_expire_plan   a time has run out
-- planq_hand_back_step        a worker that stops gives a step back

-- Takes up to `p_limit` due wake-ups of stages, and as many of steps. One sweeper acts at a time; the others get nothing. The queues
-- `p_empty` hold nothing, so what is planq_is_unclaimed there was lost (with a worker, or with the broker's memory), and is due at
-- once. Wake-ups of paused jobs are moved and not returned. Steps whose tool no live worker has are put aside (offers.sql).
-- Returns stages (`plan`, `respond`), then steps, of older jobs first, within a job those with the longest path behind them first.
CREATE FUNCTION planq_take_due_wakes(p_limit int, p_empty text[]) RETURNS SETOF planq_due_wake LANGUAGE plpgsql AS $$
DECLARE
    -- A lost wake-up counts as published twice, so it is looked for again after another claim's grace.
    v_horizon CONSTANT timestamptz := planq_now() + CASE WHEN cardinality(p_empty) > 0
        THEN planq_wake_pause(2) - planq_claim_grace() ELSE interval '0' END;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('planq.sweep')) THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH due AS (
        SELECT j.id,
            CASE WHEN j.paused_at IS NOT NULL THEN 10 WHEN j.wake_at <= planq_now() THEN j.wakes + 1 ELSE 2 END AS wakes
        FROM jobs j
        WHERE j.wake_at <= v_horizon AND j.run_at <= planq_now() AND j.stage_worker IS NULL
          AND planq_is_unfinished(j.status)
          AND j.status IN ('queued', 'planning', 'responding')
          AND (j.wake_at <= planq_now()
               OR (planq_wake_queue('io', j.priority) = ANY (p_empty) AND planq_is_unclaimed(j.wake_at, j.wakes)))
        ORDER BY j.wake_at LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE jobs SET wakes = due.wakes, wake_at = planq_now() + planq_wake_pause(due.wakes)
        FROM due WHERE jobs.id = due.id
        RETURNING jobs.*
    )
    SELECT CASE t.status WHEN 'responding' THEN 'respond' ELSE 'plan' END, t.id, t.round, NULL::int, 'io'::text,
        NULL::text, t.stage_attempt, t.priority::text, t.agent_name, t.root_job_id,
        t.tenant_id
    FROM taken t WHERE t.paused_at IS NULL ORDER BY t.id;
    RETURN QUERY
    WITH due AS (
        SELECT s.job_id, s.round, s.index, j.paused_at IS NOT NULL AS is_paused, j.priority, j.root_job_id,
            planq_is_offered(s.pool, s.tool_name, s.tool_digest) AS is_offered,
            CASE WHEN j.paused_at IS NOT NULL THEN 10 WHEN s.wake_at <= planq_now() THEN s.wakes + 1 ELSE 2 END AS wakes
        FROM steps s JOIN jobs j ON j.id = s.job_id
        WHERE s.status = ANY (planq_step_idle()) AND s.status = ANY (planq_step_ready()) AND s.wake_at <= v_horizon
          AND (s.wake_at <= planq_now()
               OR (planq_wake_queue(s.pool, j.priority) = ANY (p_empty) AND s.run_at <= planq_now()
                   AND planq_is_unclaimed(s.wake_at, s.wakes)))
        ORDER BY s.wake_at LIMIT p_limit FOR NO KEY UPDATE OF s SKIP LOCKED
    ), taken AS (
        UPDATE steps SET wakes = CASE WHEN due.is_offered THEN due.wakes ELSE 0 END,
            wake_at = CASE WHEN due.is_offered THEN planq_now() + planq_wake_pause(due.wakes) ELSE planq_never() END,
            tool_away_since = CASE WHEN NOT due.is_offered THEN coalesce(tool_away_since, planq_now()) END
        FROM due WHERE steps.job_id = due.job_id AND steps.round = due.round AND steps.index = due.index
        RETURNING steps.job_id, steps.round, steps.index, steps.pool, steps.tool_name, steps.attempt, due.is_paused,
            due.priority, due.root_job_id, steps.tenant_id, due.is_offered, steps.path
    ), told AS (
        INSERT INTO events (tenant_id, job_id, kind, data)
        SELECT t.tenant_id, t.job_id, 'step_awaits_tool', json_build_object(
            'round', t.round, 'index', t.index, 'tool_name', t.tool_name, 'pool', t.pool)
        FROM taken t WHERE NOT t.is_offered
    )
    SELECT 'step'::text, t.job_id, t.round, t.index, t.pool::text, t.tool_name, t.attempt, t.priority::text, NULL::text,
        t.root_job_id, t.tenant_id
    FROM taken t WHERE t.is_offered AND NOT t.is_paused ORDER BY t.job_id, t.path DESC, t.index;
END $$;

-- The queue of a pool and a priority (WakeQueue).
CREATE FUNCTION planq_wake_queue(p_pool text, p_priority text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE p_priority WHEN 'interactive' THEN p_pool ELSE p_pool || '.' || p_priority END
$$;

-- Whether what is looked at again at `p_wake_at` was published more than planq_claim_grace() ago, the last time as number
-- `p_wakes`, and has got lost if its queue is empty. Once it has been published twice it is looked for only when due:
-- before that, `p_wake_at` lies within the first pauses, which is what an index on it is asked for.
CREATE FUNCTION planq_is_unclaimed(p_wake_at timestamptz, p_wakes int) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p_wake_at <= planq_now() + planq_wake_pause(2) - planq_claim_grace()
       AND p_wake_at - planq_wake_pause(p_wakes) <= planq_now() - planq_claim_grace()
$$;

-- JobExpired: fails a job that has used up its time, in the queue (`p_queued`) or as a whole; one that is
-- paused, or waits for one that is, keeps its time. Returns the ids of all ended jobs, NULL when it did not land.
CREATE FUNCTION planq_expire_job(p_job uuid, p_queued boolean, p_error json) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
BEGIN
    PERFORM planq_lock_lineages(ARRAY[p_job]);
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR planq_is_ended(j.status) OR (j.status = 'queued') <> p_queued
       OR j.paused_at IS NOT NULL OR j.expires_at IS NULL OR j.expires_at > planq_now() OR planq_is_held_below(p_job) THEN
        RETURN NULL;
    END IF;
    RETURN planq_end_tree(p_job, 'failed', p_error, NULL);
END $$;

-- PlanExpired: what runs, waits or could have run fails with `p_error`, so that the answer says so; the rest is
-- skipped, and the job goes on to the stage after its round. The children of all steps end with them. What open calls may
-- have cost stays held for a while. A plan that is paused, or waits for a paused job, does not expire.
-- Returns the job's status, null where it did not apply.
CREATE FUNCTION planq_expire_plan(p_job uuid, p_error json) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    v_closed int;
    v_failed int;
    v_children uuid[];
BEGIN
    PERFORM planq_lock_lineages(ARRAY[p_job]);
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status <> 'executing' OR j.paused_at IS NOT NULL
       OR j.deadline IS NULL OR j.deadline > planq_now() OR planq_is_held_below(p_job) THEN
        RETURN NULL;
    END IF;
    PERFORM planq_end_waits(ARRAY[p_job]);
    WITH closed AS (
        UPDATE steps SET
            status = CASE WHEN status = ANY (planq_step_pending()) THEN 'skipped' ELSE 'failed' END,
            error = CASE WHEN status <> ALL (planq_step_pending()) THEN p_error END,
            output = NULL,
            question_id = NULL,
            finished_at = planq_clock(),
            wake_at = NULL,
            deadline = NULL
        WHERE job_id = p_job AND round = j.round AND status = ANY (planq_step_unfinished())
        RETURNING steps.status, steps.children
    )
    SELECT count(*), count(*) FILTER (WHERE closed.status = 'failed'),
           (SELECT array_agg(c) FROM closed d CROSS JOIN LATERAL unnest(d.children) AS c)
    INTO v_closed, v_failed, v_children FROM closed;
    IF v_children IS NOT NULL THEN
        PERFORM planq_drop_children(v_children);
    END IF;
    PERFORM planq_append_event(j.tenant_id, p_job, 'plan_expired', p_error);
    RETURN (SELECT c.status FROM planq_close_steps(ARRAY[ROW(0, p_job, v_closed, v_failed, 0, 0, false, NULL)::planq_closing], NULL, NULL) c);
END $$;

-- StepReleased: a worker that stops gives a running step back, so that another one continues at once; after an earlier
-- step has failed for good it is skipped instead, unless it has joined. Its time begins anew with the next attempt. A
-- `p_worker` must own the attempt; an answer of a person has none. Returns as planq_finish_step does; the caller publishes `ready`.
CREATE FUNCTION planq_hand_back_step(p_job uuid, p_round int, p_index int, p_attempt int, p_worker uuid) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    s steps%ROWTYPE;
    v_late boolean;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status <> 'executing' OR j.round <> p_round THEN
        RETURN json_build_object('applied', false);
    END IF;
    v_late := coalesce(p_index > j.halt_index, false);
    UPDATE steps SET status = CASE WHEN v_late AND NOT joined THEN 'skipped' ELSE 'ready' END, run_at = planq_now(),
        wakes = 0,
        wake_at = CASE WHEN joined OR NOT v_late THEN planq_now() + planq_wake_grace() END,
        finished_at = CASE WHEN v_late AND NOT joined THEN planq_clock() END,
        worker_id = NULL, deadline = NULL, releases = releases + 1,
        started_at = CASE WHEN joined THEN started_at END, asked_at = NULL
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = ANY (planq_step_running()) AND attempt = p_attempt
      AND coalesce(worker_id = p_worker, p_worker IS NULL)
    RETURNING * INTO s;
    IF NOT FOUND THEN
        RETURN json_build_object('applied', false);
    END IF;
    PERFORM planq_append_event(j.tenant_id, p_job, 'step_released',
        json_build_object('round', p_round, 'index', p_index, 'attempt', p_attempt));
    IF s.status = 'skipped' THEN
        RETURN json_build_object('applied', true, 'status', s.status, 'ready', '[]'::json,
            'stage_attempt', j.stage_attempt,
            'job_status', (SELECT c.status FROM planq_close_steps(ARRAY[ROW(
                0, p_job, 1 + planq_skip_after(p_job, p_round, p_index), 0, -1, 0, false, NULL)::planq_closing], NULL, NULL) c));
    END IF;
    RETURN json_build_object('applied', true, 'status', s.status, 'job_status', j.status,
        'ready', json_build_array(json_build_object('index', s.index, 'pool', s.pool, 'tool_name', s.tool_name)));
END $$;
