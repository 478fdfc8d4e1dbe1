-- Control: what people ask of a job. Each function has the job and all that it has delegated in view.
--
-- planq_cancel_job   ends the job and everything below it: planq_cut_off, planq_cancel_tree
-- planq_pause_job    nothing of the job is begun any more, nor of what is below it: planq_below
-- planq_resume_job   lets a paused job go on (planq_end_pause, planq_resume_below, planq_rewake_steps), or tries again what
--                    has not succeeded of one that has ended (planq_reopen_steps, planq_reopen_job)

-- CancelRequested: ends the job, and its child jobs. Returns {found, applied, status, ended: [ids]}.
CREATE FUNCTION planq_cancel_job(p_job uuid, p_tenant text) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
BEGIN
    PERFORM planq_lock_lineages(ARRAY[p_job]);
    SELECT * INTO j FROM jobs WHERE id = p_job AND tenant_id = p_tenant FOR NO KEY UPDATE;
    IF j.id IS NULL THEN
        RETURN json_build_object('found', false, 'applied', false);
    END IF;
    IF planq_is_ended(j.status) THEN
        RETURN json_build_object('found', true, 'applied', false, 'status', j.status);
    END IF;
    RETURN json_build_object('found', true, 'applied', true, 'status', 'cancelled',
        'ended', to_json(planq_cut_off(p_job, 'cancelled', NULL)));
END $$;

-- Ends an unfinished job in the middle, as `p_status`: its unfinished steps are cancelled, what still runs is fenced off
-- by that; everything below it is cancelled with it, and open questions are closed. What open calls may have cost stays held for a
-- while. Without `p_error` its error is that of its first step that has failed. The caller holds the job's row and those above
-- it. Returns the ids of all ended jobs.
CREATE FUNCTION planq_cut_off(p_job uuid, p_status text, p_error json) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    j record;
BEGIN
    PERFORM planq_owe(ARRAY[p_job]);
    PERFORM planq_end_waits(ARRAY[p_job]);
    UPDATE steps SET status = 'cancelled', finished_at = planq_clock(), wake_at = NULL, deadline = NULL,
        question_id = NULL
    WHERE job_id = p_job AND status = ANY (planq_step_unfinished());
    UPDATE jobs SET status = p_status, finished_at = planq_clock(), stage_worker = NULL,
        error = coalesce(p_error, CASE WHEN failed_steps > 0 THEN planq_first_failure(id) END),
        cancel_requested_at = CASE WHEN p_status = 'cancelled' THEN planq_now() END,
        wake_at = NULL, deadline = NULL, paused_at = NULL, open_steps = 0, open_questions = 0, places = NULL,
        out_steps = NULL, held_steps = 0
    WHERE id = p_job AND finished_at IS NULL RETURNING tenant_id, error INTO j;
    ASSERT FOUND, 'ended_twice';
    PERFORM planq_append_event(j.tenant_id, p_job, 'job_' || p_status, planq_end_told(p_status, j.error));
    RETURN ARRAY[p_job] || planq_cancel_tree(ARRAY[p_job], '{}');
END $$;

-- Cancels the unfinished ones of `p_jobs` and everything below these and below `p_above`: their parents do not wait for
-- them any more. Locks them in the order of their ids. A job that was made meanwhile by one of them is found in the next
-- turn; then nobody makes any more. What open calls of these jobs may have cost stays held for a while. The caller holds the
-- rows of all jobs above. Returns the ids of those that this ended.
CREATE FUNCTION planq_cancel_tree(p_above uuid[], p_jobs uuid[]) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    v_unfinished CONSTANT text[] := planq_unfinished();
    v_above uuid[] := p_above;
    v_ids uuid[];
    v_ended uuid[] := '{}';
BEGIN
    LOOP
        WITH RECURSIVE tree (id) AS (
            SELECT unnest(p_jobs || v_above)
            UNION
            SELECT c.id FROM tree t CROSS JOIN LATERAL (
                SELECT j.id FROM jobs j WHERE j.parent_job_id = t.id AND j.status = ANY (v_unfinished) OFFSET 0
            ) c
        )
        SELECT array_agg(l.id) INTO v_ids FROM (
            SELECT id FROM jobs WHERE id = ANY (ARRAY(SELECT t.id FROM tree t)) AND id <> ALL (p_above)
              AND status = ANY (v_unfinished)
            ORDER BY id FOR NO KEY UPDATE
        ) l;
        EXIT WHEN v_ids IS NULL;
        PERFORM planq_owe(v_ids);
        PERFORM planq_end_waits(v_ids);
        UPDATE steps SET status = 'cancelled', finished_at = planq_clock(), wake_at = NULL, deadline = NULL,
            question_id = NULL
        WHERE job_id = ANY (v_ids) AND status = ANY (planq_step_unfinished());
        UPDATE jobs SET status = 'cancelled', finished_at = planq_clock(), stage_worker = NULL, is_joined = true,
            error = CASE WHEN failed_steps > 0 THEN planq_first_failure(id) END,
            cancel_requested_at = planq_now(), wake_at = NULL, deadline = NULL, paused_at = NULL, open_steps = 0,
            open_questions = 0, places = NULL, out_steps = NULL, held_steps = 0
        WHERE id = ANY (v_ids);
        INSERT INTO events (tenant_id, job_id, kind, data)
        SELECT tenant_id, id, 'job_cancelled', planq_end_told('cancelled', error) FROM jobs WHERE id = ANY (v_ids) ORDER BY id;
        v_ended := v_ended || v_ids;
        v_above := p_above || v_ended;
    END LOOP;
    RETURN v_ended;
END $$;

-- PauseRequested: nothing of the job is begun from now on, nor of anything below it; a job that is made meanwhile by one
-- of these is found in the next turn. Returns {found, applied, status}.
CREATE FUNCTION planq_pause_job(p_job uuid, p_tenant text) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    v_below uuid[];
BEGIN
    -- The jobs above, too: whose time has run out there waits, and then sees that it is held below.
    PERFORM planq_lock_lineages(ARRAY[p_job]);
    SELECT * INTO j FROM jobs WHERE id = p_job AND tenant_id = p_tenant FOR NO KEY UPDATE;
    IF j.id IS NULL THEN
        RETURN json_build_object('found', false, 'applied', false);
    END IF;
    IF planq_is_ended(j.status) OR j.paused_at IS NOT NULL THEN
        RETURN json_build_object('found', true, 'applied', false, 'status', j.status);
    END IF;
    UPDATE jobs SET paused_at = planq_now() WHERE id = p_job;
    PERFORM planq_append_event(j.tenant_id, p_job, 'job_paused', NULL);
    LOOP
        v_below := planq_below(p_job, NULL);
        EXIT WHEN v_below IS NULL;
        UPDATE jobs SET paused_at = planq_now() WHERE id = ANY (v_below);
        INSERT INTO events (tenant_id, job_id, kind) SELECT j.tenant_id, b, 'job_paused' FROM unnest(v_below) b;
    END LOOP;
    RETURN json_build_object('found', true, 'applied', true, 'status', j.status);
END $$;

-- The unfinished jobs below a job whose pause began at `p_paused` (null: those that are not paused), locked in the order
-- of their ids. The caller holds the job's row.
CREATE FUNCTION planq_below(p_job uuid, p_paused timestamptz) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    v_unfinished CONSTANT text[] := planq_unfinished();
BEGIN
    RETURN (
        WITH RECURSIVE tree (id) AS (
            SELECT p_job
            UNION
            SELECT c.id FROM tree t CROSS JOIN LATERAL (
                SELECT j.id FROM jobs j WHERE j.parent_job_id = t.id AND j.status = ANY (v_unfinished) OFFSET 0
            ) c
        )
        SELECT array_agg(l.id) FROM (
            SELECT id FROM jobs WHERE id = ANY (ARRAY(SELECT t.id FROM tree t)) AND id <> p_job
              AND status = ANY (v_unfinished) AND paused_at IS NOT DISTINCT FROM p_paused
            ORDER BY id FOR NO KEY UPDATE
        ) l
    );
END $$;

-- ResumeRequested: a paused job goes on, its times moved by the length of the pause, and so does what was paused with it;
-- one that failed, or completed with failed steps, tries again what has not succeeded, and delegates anew. The second only
-- if `p_after` is how often it has been resumed: else what is to be tried again has not been looked at; the first only if
-- `p_after` is NULL. A child job that has ended is not resumed: its parent has been notified of its end, and makes a new one
-- when it is resumed itself. What a job had come to before a chained tool is kept while that tool is tried again. Where
-- failures are recorded, none of them is the job's, and only what was cut off with it is tried again; where that was in no
-- round, its next round is planned. `p_seconds` is the time that the steps get, null for the limit on a plan. A turn that
-- has ended becomes its conversation's active one again; `is_busy` where another one is. One of a batch is
-- not resumed once its line has been retried (`is_replaced`).
-- Returns {found, applied, status, round, stage_attempt, ready: [{index, pool, tool_name}], priority, agent, root: the
-- outermost job}; the caller publishes `ready`, or
-- the stage that the status stands for.
CREATE FUNCTION planq_resume_job(p_job uuid, p_tenant text, p_after int, p_in_doubt int[], p_seconds float8) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    c record;
    v_may_go_on boolean;
    v_status text;
    v_again int := 0;
    v_ready json := '[]';
BEGIN
    -- Of a conversation the row is locked first.
    SELECT o.id, o.active_job_id INTO c FROM jobs t JOIN conversations o ON o.id = t.conversation_id
    WHERE t.id = p_job AND t.tenant_id = p_tenant AND t.parent_job_id IS NULL FOR NO KEY UPDATE OF o;
    PERFORM planq_lock_lineages(ARRAY[p_job]);
    SELECT * INTO j FROM jobs WHERE id = p_job AND tenant_id = p_tenant FOR NO KEY UPDATE;
    IF j.id IS NULL THEN
        RETURN json_build_object('found', false, 'applied', false);
    END IF;
    v_may_go_on := CASE
        WHEN j.status = 'failed' OR j.status = 'completed' AND j.failed_steps > 0
            THEN j.resumes IS NOT DISTINCT FROM p_after AND j.parent_job_id IS NULL
        ELSE j.paused_at IS NOT NULL AND p_after IS NULL END;
    IF NOT v_may_go_on THEN
        RETURN json_build_object('found', true, 'applied', false, 'status', j.status);
    END IF;
    IF j.paused_at IS NOT NULL THEN
        v_status := j.status;
        PERFORM planq_end_pause(j);
    ELSIF c.active_job_id <> p_job THEN
        RETURN json_build_object('found', true, 'applied', false, 'status', j.status, 'is_busy', true);
    ELSIF NOT planq_has_line(j) THEN
        RETURN json_build_object('found', true, 'applied', false, 'status', j.status, 'is_replaced', true);
    ELSE
        UPDATE conversations SET active_job_id = p_job WHERE id = c.id;
        v_again := planq_reopen_steps(p_job, j.round, j.on_failure, p_in_doubt);
        v_status := planq_reopen_job(j, v_again, p_seconds);
    END IF;
    IF v_status = 'executing' THEN
        v_ready := planq_rewake_steps(p_job, j.round);
    END IF;
    PERFORM planq_append_event(j.tenant_id, p_job, 'job_resumed',
        json_build_object('from', j.status, 'again', v_again, 'answer', j.answer, 'preview', j.preview, 'error', j.error));
    RETURN json_build_object('found', true, 'applied', true, 'status', v_status, 'round', j.round,
        'stage_attempt', j.stage_attempt, 'ready', v_ready, 'priority', j.priority, 'agent', j.agent_name,
        'root', coalesce(j.root_job_id, j.id), 'tenant', j.tenant_id);
END $$;

-- Lets the paused job `j` go on, with what is below it: its times are moved by the length of the pause. The caller holds its row, and
-- those above it.
CREATE FUNCTION planq_end_pause(j jobs) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_pause CONSTANT interval := planq_now() - j.paused_at;
BEGIN
    UPDATE steps SET wake_at = wake_at + v_pause
    WHERE job_id = j.id AND status = ANY (planq_step_waiting()) AND question_id IS NOT NULL;
    PERFORM planq_credit_pause(j.id);
    UPDATE jobs SET paused_at = NULL, deadline = deadline + v_pause, expires_at = expires_at + v_pause,
        rounds_deadline = rounds_deadline + v_pause,
        wake_at = CASE WHEN wake_at IS NOT NULL THEN greatest(run_at, planq_now() + planq_wake_grace()) END,
        wakes = 0
    WHERE id = j.id;
    PERFORM planq_resume_below(j.id, j.paused_at);
END $$;

-- Whether a job is of no batch, or its line is still its own: nobody retries that before this transaction has ended. The caller holds the job.
CREATE FUNCTION planq_has_line(j jobs) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF j.batch_id IS NULL THEN
        RETURN true;
    END IF;
    PERFORM FROM batch_lines WHERE batch_id = j.batch_id AND line = j.batch_line AND job_id = j.id FOR SHARE;
    RETURN FOUND;
END $$;

-- Lets the job `j`, which has ended, run again where it stood, with `p_again` of its steps open again. Returns the status that it has
-- then. The caller holds its row.
CREATE FUNCTION planq_reopen_job(j jobs, p_again int, p_seconds float8) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    w CONSTANT planq_windowed := planq_begin_window(j.id, j.round, p_again, j.priority);
    v_chained CONSTANT boolean := EXISTS (
        SELECT FROM plans WHERE job_id = j.id AND round = j.round AND source = 'chained');
    v_status CONSTANT text := CASE
        WHEN p_again > 0 THEN 'executing'
        WHEN EXISTS (SELECT FROM steps WHERE job_id = j.id AND round = j.round)
          OR (j.respond = 'model'
              AND EXISTS (SELECT FROM plans WHERE job_id = j.id AND round = j.round AND errors IS NOT NULL))
        THEN 'responding' ELSE 'queued' END;
BEGIN
    UPDATE jobs SET status = v_status, open_steps = p_again, places = w.places, out_steps = w.out_steps,
        held_steps = w.held_steps, failed_steps = 0, halt_index = NULL, open_questions = 0,
        resumes = resumes + 1, stage_losses = 0, stage_worker = NULL, error = NULL, chained = NULL,
        stop_reason = CASE WHEN v_chained THEN stop_reason END, incomplete = CASE WHEN v_chained THEN incomplete END,
        rounds_deadline = NULL,
        answer = CASE WHEN v_chained THEN answer END, preview = NULL, output = CASE WHEN v_chained THEN output END,
        finished_at = NULL, run_at = planq_now(), wakes = 0, is_joined = false,
        wake_at = CASE WHEN v_status <> 'executing' THEN planq_now() + planq_wake_grace() END,
        deadline = CASE WHEN v_status = 'executing'
            THEN planq_now() + make_interval(secs => coalesce(p_seconds, (limits->>'plan_timeout_seconds')::float8))
            END,
        expires_at = planq_now() + make_interval(secs => (limits->>'job_timeout_seconds')::float8)
    WHERE id = j.id;
    RETURN v_status;
END $$;

-- Lets what was paused with a job go on with it: its times are moved by the length of the pause, and what is due of it
-- is due at once, for the sweeper. The caller holds the job's row.
CREATE FUNCTION planq_resume_below(p_job uuid, p_paused timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_pause CONSTANT interval := planq_now() - p_paused;
    v_below CONSTANT uuid[] := planq_below(p_job, p_paused);
BEGIN
    IF v_below IS NULL THEN
        RETURN;
    END IF;
    UPDATE steps SET wakes = 0,
        wake_at = CASE WHEN status = ANY (planq_step_ready()) THEN greatest(run_at, planq_now()) ELSE wake_at + v_pause END
    WHERE job_id = ANY (v_below) AND ((status = ANY (planq_step_ready()) AND wake_at IS NOT NULL)
                                      OR (status = ANY (planq_step_waiting()) AND question_id IS NOT NULL));
    UPDATE jobs SET paused_at = NULL, deadline = deadline + v_pause, expires_at = expires_at + v_pause,
        rounds_deadline = rounds_deadline + v_pause,
        wake_at = CASE WHEN wake_at IS NOT NULL THEN greatest(run_at, planq_now()) END, wakes = 0
    WHERE id = ANY (v_below);
    INSERT INTO events (tenant_id, job_id, kind, data)
    SELECT tenant_id, id, 'job_resumed', json_build_object('from', status, 'again', 0) FROM jobs WHERE id = ANY (v_below);
END $$;

-- Gives every step of a round without success a fresh start, without the child jobs that it had, but none to one whose
-- failure was known when its plan was accepted; where failures are recorded, every step that was cancelled. `p_in_doubt` lists those whose tool has to find out first whether an earlier
-- attempt took effect. It does so once that attempt can act no more: its worker has been asked to stop and, where
-- nobody knows the worker to be gone, the time of the call is over. It takes time that grows with the number of the plan's
-- dependencies, not with the square of its steps. Returns how many there are. The caller holds the job's row.
CREATE FUNCTION planq_reopen_steps(p_job uuid, p_round int, p_on_failure text, p_in_doubt int[]) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    v_count int;
BEGIN
    WITH open AS MATERIALIZED (
        SELECT s.index, s.dependents FROM steps s
        WHERE s.job_id = p_job AND s.round = p_round
          AND CASE p_on_failure WHEN 'record' THEN s.status = 'cancelled'
              ELSE s.status <> 'succeeded' AND NOT s.is_known END
    ), awaited AS (
        SELECT d.index, count(*)::int AS pending FROM open o CROSS JOIN LATERAL unnest(o.dependents) AS d (index)
        GROUP BY d.index
    ), in_doubt AS (
        SELECT DISTINCT u.index FROM unnest(p_in_doubt) AS u (index)
    ), counted AS (
        SELECT o.index, coalesce(a.pending, 0) AS pending, u.index IS NOT NULL AS is_in_doubt
        FROM open o LEFT JOIN awaited a ON a.index = o.index LEFT JOIN in_doubt u ON u.index = o.index
    )
    UPDATE steps s SET
        status = CASE WHEN c.pending = 0 THEN 'ready' ELSE 'pending' END,
        pending = c.pending,
        in_doubt = c.is_in_doubt,
        output = NULL, error = NULL, finished_at = NULL, started_at = NULL, asked_at = NULL, is_asked_ahead = false,
        tool_away_since = NULL, worker_id = NULL, deadline = NULL, worker_losses = 0, releases = s.attempt, wakes = 0, joined = false,
        children = NULL, open_children = NULL, next_child = NULL, waits_for = NULL, max_parallel = NULL, note = NULL,
        run_at = greatest(planq_now(), CASE WHEN c.is_in_doubt THEN s.finished_at + planq_wake_grace() END,
            CASE WHEN c.is_in_doubt AND EXISTS (SELECT FROM workers w WHERE w.id = s.worker_id AND w.heartbeat_at > 'epoch')
                THEN s.started_at + make_interval(
                    secs => coalesce(s.longest_seconds, s.timeout_seconds) + s.timeout_seconds * s.in_doubt::int) + planq_wake_grace()
            END),
        wake_at = CASE WHEN c.pending = 0 THEN planq_now() + planq_wake_grace() END
    FROM counted c WHERE s.job_id = p_job AND s.round = p_round AND s.index = c.index;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    -- A fresh start asks anew.
    UPDATE questions q SET is_spent = true FROM steps s
    WHERE q.job_id = p_job AND NOT q.is_spent AND s.job_id = p_job AND s.index = q.step_index
      AND s.status = ANY (planq_step_unstarted());
    RETURN v_count;
END $$;

-- The ready steps of a round that are not held, due again as if they had just become ready, retries when their time comes; the caller
-- publishes those that are returned, and holds the job.
CREATE FUNCTION planq_rewake_steps(p_job uuid, p_round int) RETURNS json LANGUAGE sql AS $$
    WITH woken AS (
        UPDATE steps SET wakes = 0,
            wake_at = CASE WHEN run_at > planq_now() THEN run_at ELSE planq_now() + planq_wake_grace() END
        WHERE job_id = p_job AND round = p_round AND status = ANY (planq_step_ready()) AND wake_at IS NOT NULL
        RETURNING index, pool, tool_name, run_at, path
    )
    SELECT coalesce(
        json_agg(json_build_object('index', index, 'pool', pool, 'tool_name', tool_name) ORDER BY path DESC, index)
            FILTER (WHERE run_at <= planq_now()), '[]')
    FROM woken
$$;
