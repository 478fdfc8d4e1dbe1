-- The sweeper's own functions and resuming in release 0003: what changed is said at each; the rest stands in 0002.

-- How long a wake-up may be on its way from a queue to a claim: a second, for what waits in an empty queue has got lost.
CREATE OR REPLACE FUNCTION planq_claim_grace() RETURNS interval LANGUAGE sql IMMUTABLE AS $$ SELECT interval '1 second' $$;

-- Whether what is looked at again at `p_wake_at` was published more than planq_claim_grace() ago, the last time as number
-- `p_wakes`, and has got lost if its queue is empty. Once it has been published twice it is looked for only when due:
-- before that, `p_wake_at` lies within the first pauses, which is what an index on it is asked for.
CREATE FUNCTION planq_is_unclaimed(p_wake_at timestamptz, p_wakes int) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p_wake_at <= now() + planq_wake_pause(2) - planq_claim_grace()
       AND p_wake_at - planq_wake_pause(p_wakes) <= now() - planq_claim_grace()
$$;

-- As in 0002, with the condition above.
CREATE OR REPLACE FUNCTION planq_take_due_wakes(p_limit int, p_empty text[])
RETURNS TABLE (kind text, job_id uuid, round int, index int, lane text, tool_name text, attempt int)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    -- A lost wake-up counts as published twice from then on, so it is looked for again after another claim's grace.
    v_horizon timestamptz := now() + CASE WHEN cardinality(p_empty) > 0 THEN planq_wake_pause(2) - planq_claim_grace()
                                          ELSE interval '0' END;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('planq.sweep')) THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH due AS (
        SELECT j.id, CASE WHEN j.paused_at IS NOT NULL THEN 10 WHEN j.wake_at <= now() THEN j.wakes + 1 ELSE 2 END AS wakes
        FROM jobs j
        WHERE j.wake_at <= v_horizon AND j.run_at <= now() AND j.stage_worker IS NULL
          AND j.status IN ('queued', 'planning', 'executing', 'input_required', 'responding')
          AND j.status IN ('queued', 'planning', 'responding')
          AND (j.wake_at <= now() OR ('io' = ANY (p_empty) AND planq_is_unclaimed(j.wake_at, j.wakes)))
        ORDER BY j.wake_at LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE jobs SET wakes = due.wakes, wake_at = now() + planq_wake_pause(due.wakes)
        FROM due WHERE jobs.id = due.id
        RETURNING jobs.*
    )
    SELECT CASE t.status WHEN 'responding' THEN 'respond' ELSE 'plan' END, t.id, t.round, NULL::int, 'io'::text,
        NULL::text, t.stage_attempt
    FROM taken t WHERE t.paused_at IS NULL;
    RETURN QUERY
    WITH due AS (
        SELECT s.job_id, s.round, s.index, j.paused_at IS NOT NULL AS is_paused,
            CASE WHEN j.paused_at IS NOT NULL THEN 10 WHEN s.wake_at <= now() THEN s.wakes + 1 ELSE 2 END AS wakes
        FROM steps s JOIN jobs j ON j.id = s.job_id
        WHERE s.status IN ('ready', 'waiting') AND s.status = 'ready' AND s.wake_at <= v_horizon
          AND (s.wake_at <= now()
               OR (s.lane = ANY (p_empty) AND s.run_at <= now() AND planq_is_unclaimed(s.wake_at, s.wakes)))
        ORDER BY s.wake_at LIMIT p_limit FOR NO KEY UPDATE OF s SKIP LOCKED
    ), taken AS (
        UPDATE steps SET wakes = due.wakes, wake_at = now() + planq_wake_pause(due.wakes)
        FROM due WHERE steps.job_id = due.job_id AND steps.round = due.round AND steps.index = due.index
        RETURNING steps.job_id, steps.round, steps.index, steps.lane, steps.tool_name, steps.attempt, due.is_paused
    )
    SELECT 'step'::text, t.job_id, t.round, t.index, t.lane, t.tool_name, t.attempt
    FROM taken t WHERE NOT t.is_paused;
END $$;

-- As in 0002, in time that grows with the plan as the number of its dependencies does, not with the square.
CREATE OR REPLACE FUNCTION planq_reopen_steps(p_job uuid, p_round int, p_unsure int[]) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    v_count int;
BEGIN
    WITH open AS MATERIALIZED (
        SELECT s.index, s.dependents FROM steps s
        WHERE s.job_id = p_job AND s.round = p_round AND s.status <> 'succeeded'
    ), awaited AS (
        SELECT d.index, count(*)::int AS pending FROM open o CROSS JOIN LATERAL unnest(o.dependents) AS d (index)
        GROUP BY d.index
    ), unsure AS (
        SELECT DISTINCT u.index FROM unnest(p_unsure) AS u (index)
    ), counted AS (
        SELECT o.index, coalesce(a.pending, 0) AS pending, u.index IS NOT NULL AS is_unsure
        FROM open o LEFT JOIN awaited a ON a.index = o.index LEFT JOIN unsure u ON u.index = o.index
    )
    UPDATE steps s SET
        status = CASE WHEN c.pending = 0 THEN 'ready' ELSE 'pending' END,
        pending = c.pending,
        unsure = c.is_unsure,
        output = NULL, error = NULL, question = NULL, finished_at = NULL, started_at = NULL, asked_at = NULL,
        worker_id = NULL,
        deadline = NULL, worker_losses = 0, releases = s.attempt, wakes = 0,
        run_at = greatest(now(), CASE WHEN c.is_unsure THEN s.finished_at + planq_wake_grace() END),
        wake_at = CASE WHEN c.pending = 0 THEN now() + planq_wake_grace() END
    FROM counted c WHERE s.job_id = p_job AND s.round = p_round AND s.index = c.index;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;
