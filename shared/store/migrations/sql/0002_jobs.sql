-- Transitions of whole jobs in release 0002. Same rules as in 0001: one commit each, guarded, the job's row locked first.
-- Functions keep their signature where workers of the release before call them.

-- A stage ends its job; nothing stays paused or asked. Returns whether it landed.
CREATE OR REPLACE FUNCTION planq_end_job(
    p_job uuid, p_attempt int, p_status text, p_answer text, p_error json, p_calls json
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    PERFORM planq_record_calls(p_job, p_calls);
    IF j.id IS NULL OR j.status NOT IN ('planning', 'responding') OR j.stage_worker IS NULL
       OR j.stage_attempt <> p_attempt THEN
        RETURN false;
    END IF;
    UPDATE jobs SET status = p_status, answer = p_answer, error = p_error, stage_worker = NULL, deadline = NULL,
        wake_at = NULL, paused_at = NULL, finished_at = clock_timestamp()
    WHERE id = j.id;
    PERFORM planq_tell(j.tenant_id, j.id, 'job_' || p_status, p_error);
    RETURN true;
END $$;

-- StageReleased: a lost stage is due at once, for the sweeper that found it; whoever gives one back publishes it himself.
CREATE OR REPLACE FUNCTION planq_release_stage(p_job uuid, p_attempt int, p_lost boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_tenant text;
BEGIN
    UPDATE jobs SET stage_worker = NULL, deadline = NULL, wakes = 0,
        wake_at = CASE WHEN p_lost THEN now() ELSE now() + planq_wake_grace() END,
        stage_losses = stage_losses + CASE WHEN p_lost THEN 1 ELSE 0 END
    WHERE id = p_job AND status IN ('planning', 'responding') AND stage_worker IS NOT NULL
      AND stage_attempt = p_attempt
    RETURNING tenant_id INTO v_tenant;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM planq_tell(v_tenant, p_job, 'stage_released', json_build_object('attempt', p_attempt, 'lost', p_lost));
    RETURN true;
END $$;

-- Counts `p_closed` steps off the job; the last one opens RESPOND. The caller holds the job's row.
CREATE OR REPLACE FUNCTION planq_close_steps(p_job uuid, p_closed int, p_failed int) RETURNS text LANGUAGE sql AS $$
    UPDATE jobs SET
        open_steps = open_steps - p_closed,
        failed_steps = failed_steps + p_failed,
        status = CASE WHEN open_steps = p_closed THEN 'responding' ELSE status END,
        open_questions = CASE WHEN open_steps = p_closed THEN 0 ELSE open_questions END,
        wake_at = CASE WHEN open_steps = p_closed THEN now() + planq_wake_grace() END,
        wakes = 0,
        deadline = CASE WHEN open_steps = p_closed THEN NULL ELSE deadline END
    WHERE id = p_job RETURNING status
$$;

-- PlanExpired: what runs, waits or could have run fails with `p_error`; the rest is skipped; the job goes on to RESPOND.
-- A paused plan does not expire. Returns whether it landed.
CREATE OR REPLACE FUNCTION planq_expire_plan(p_job uuid, p_error json) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    v_closed int;
    v_failed int;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status NOT IN ('executing', 'input_required') OR j.paused_at IS NOT NULL
       OR j.deadline IS NULL OR j.deadline > now() THEN
        RETURN false;
    END IF;
    WITH closed AS (
        UPDATE steps SET
            status = CASE status WHEN 'pending' THEN 'skipped' ELSE 'failed' END,
            error = CASE status WHEN 'pending' THEN NULL ELSE p_error END,
            output = NULL,
            question = NULL,
            finished_at = clock_timestamp(),
            wake_at = NULL,
            deadline = NULL
        WHERE job_id = p_job AND round = j.round AND status IN ('pending', 'ready', 'running', 'waiting')
        RETURNING steps.status
    )
    SELECT count(*), count(*) FILTER (WHERE closed.status = 'failed') INTO v_closed, v_failed FROM closed;
    PERFORM planq_close_steps(p_job, v_closed, v_failed);
    PERFORM planq_tell(j.tenant_id, p_job, 'plan_expired', p_error);
    RETURN true;
END $$;

-- Ends an unfinished job in the middle, as `p_status`: its unfinished steps are cancelled, what still runs is fenced off
-- by that; its child jobs are cancelled with it. The caller holds the job's row. Returns the ids of all ended jobs.
CREATE FUNCTION planq_cut_off(p_job uuid, p_status text, p_error json) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    v_tenant text;
    v_child uuid;
    v_ended uuid[] := ARRAY[p_job];
BEGIN
    UPDATE steps SET status = 'cancelled', finished_at = clock_timestamp(), wake_at = NULL, deadline = NULL,
        question = NULL
    WHERE job_id = p_job AND status IN ('pending', 'ready', 'running', 'waiting');
    UPDATE jobs SET status = p_status, error = p_error, finished_at = clock_timestamp(), stage_worker = NULL,
        cancel_requested_at = CASE WHEN p_status = 'cancelled' THEN now() END,
        wake_at = NULL, deadline = NULL, paused_at = NULL, open_steps = 0, open_questions = 0
    WHERE id = p_job RETURNING tenant_id INTO v_tenant;
    PERFORM planq_tell(v_tenant, p_job, 'job_' || p_status, p_error);
    FOR v_child IN
        SELECT id FROM jobs
        WHERE parent_job_id = p_job AND status IN ('queued', 'planning', 'executing', 'input_required', 'responding')
        ORDER BY id FOR NO KEY UPDATE
    LOOP
        v_ended := v_ended || planq_cut_off(v_child, 'cancelled', NULL);
    END LOOP;
    RETURN v_ended;
END $$;

-- CancelRequested: ends the job, and its child jobs. Returns {found, landed, status, ended: [ids]}.
CREATE OR REPLACE FUNCTION planq_cancel_job(p_job uuid, p_tenant text) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job AND tenant_id = p_tenant FOR NO KEY UPDATE;
    IF j.id IS NULL THEN
        RETURN json_build_object('found', false, 'landed', false);
    END IF;
    IF j.status IN ('completed', 'failed', 'cancelled') THEN
        RETURN json_build_object('found', true, 'landed', false, 'status', j.status);
    END IF;
    RETURN json_build_object('found', true, 'landed', true, 'status', 'cancelled',
        'ended', to_json(planq_cut_off(p_job, 'cancelled', NULL)));
END $$;

-- JobExpired: fails a job that has used up its time, in the queue (`p_queued`) or as a whole; a paused one keeps its
-- time. Returns the ids of all ended jobs, NULL when it did not land.
CREATE FUNCTION planq_expire_job(p_job uuid, p_queued boolean, p_error json) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status IN ('completed', 'failed', 'cancelled') OR (j.status = 'queued') <> p_queued
       OR j.paused_at IS NOT NULL OR j.expires_at IS NULL OR j.expires_at > now() THEN
        RETURN NULL;
    END IF;
    RETURN planq_cut_off(p_job, 'failed', p_error);
END $$;

-- How long after its publication a wake-up is looked at again, when it has been published `p_wakes` times: twice as long
-- each time, so that a long queue is not flooded with copies.
CREATE FUNCTION planq_wake_pause(p_wakes int) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT least(planq_wake_grace() * 2 ^ least(greatest(p_wakes - 1, 0), 10), interval '10 minutes')
$$;

-- How long a wake-up may be on its way from a queue to a claim.
CREATE FUNCTION planq_claim_grace() RETURNS interval LANGUAGE sql IMMUTABLE AS $$ SELECT interval '2 seconds' $$;

-- Takes up to `p_limit` wake-ups of a kind that are due. In the lanes `p_empty`, whose queues hold nothing, whatever was
-- published more than planq_claim_grace() ago and is unclaimed has got lost (with a worker that died or froze, or with
-- the broker's memory), and is due at once. Those of paused jobs are moved and not returned. One sweeper acts at a time;
-- the others get nothing. Returns rows (kind: plan | respond | step, job_id, round, index, lane, tool_name, attempt).
CREATE FUNCTION planq_take_due_wakes(p_limit int, p_empty text[])
RETURNS TABLE (kind text, job_id uuid, round int, index int, lane text, tool_name text, attempt int)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    -- A lost wake-up counts as published twice from then on, so it is looked for again after another claim's grace.
    v_horizon timestamptz := now() + CASE WHEN cardinality(p_empty) > 0 THEN planq_wake_pause(2) - planq_claim_grace()
                                          ELSE interval '0' END;
    v_lost timestamptz := now() - planq_claim_grace();
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
          AND (j.wake_at <= now() OR ('io' = ANY (p_empty) AND j.wake_at - planq_wake_pause(j.wakes) <= v_lost))
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
               OR (s.lane = ANY (p_empty) AND s.run_at <= now() AND s.wake_at - planq_wake_pause(s.wakes) <= v_lost))
        ORDER BY s.wake_at LIMIT p_limit FOR NO KEY UPDATE OF s SKIP LOCKED
    ), taken AS (
        UPDATE steps SET wakes = due.wakes, wake_at = now() + planq_wake_pause(due.wakes)
        FROM due WHERE steps.job_id = due.job_id AND steps.round = due.round AND steps.index = due.index
        RETURNING steps.job_id, steps.round, steps.index, steps.lane, steps.tool_name, steps.attempt, due.is_paused
    )
    SELECT 'step'::text, t.job_id, t.round, t.index, t.lane, t.tool_name, t.attempt
    FROM taken t WHERE NOT t.is_paused;
END $$;

-- The same for workers of the release before.
CREATE OR REPLACE FUNCTION planq_take_due_wakes(p_limit int)
RETURNS TABLE (kind text, job_id uuid, round int, index int, lane text, tool_name text, attempt int)
LANGUAGE sql AS $$ SELECT * FROM planq_take_due_wakes(p_limit, '{}') $$;
