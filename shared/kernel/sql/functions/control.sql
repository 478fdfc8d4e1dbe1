-- Control: what people ask of a job. Each function has the job and all that it has delegated in view.
--
-- planq_cancel_job   ends the job and everything below it: planq_end_tree
-- planq_pause_job    nothing of the job is begun any more, nor of what is below it: planq_below
-- planq_resume_job   lets a paused job go on (planq_end_pause), or tries again what has not succeeded of one that has ended
--                    (planq_reopen_job)

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
        'ended', to_json(planq_end_tree(p_job, 'cancelled', NULL, NULL)));
END $$;

-- Ends the job `p_job` as `p_status`, and cancels the unfinished jobs of `p_jobs` and everything below all of these. Either may be
-- null. Parents do not wait for cancelled jobs. Unfinished steps are cancelled, which fences off their attempts. The error
-- is `p_error`, otherwise that of the first failed step. Jobs are locked in the order of their ids; each turn finds the jobs that
-- were made meanwhile. The caller holds `p_job` and all jobs above. Returns the ids of the jobs that this ended.
CREATE FUNCTION planq_end_tree(p_job uuid, p_status text, p_error json, p_jobs uuid[]) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    v_unfinished CONSTANT text[] := planq_unfinished();
    v_ids uuid[];
    v_ended uuid[] := '{}';
BEGIN
    LOOP
        WITH RECURSIVE tree (id) AS (
            SELECT unnest(p_job || p_jobs || v_ended)
            UNION
            SELECT c.id FROM tree t CROSS JOIN LATERAL (
                SELECT j.id FROM jobs j WHERE j.parent_job_id = t.id AND j.status = ANY (v_unfinished) OFFSET 0
            ) c
        )
        SELECT array_agg(l.id) INTO v_ids FROM (
            SELECT id FROM jobs WHERE id = ANY (ARRAY(SELECT t.id FROM tree t)) AND status = ANY (v_unfinished)
            ORDER BY id FOR NO KEY UPDATE
        ) l;
        EXIT WHEN v_ids IS NULL;
        PERFORM planq_end_waits(v_ids);
        UPDATE steps SET status = 'cancelled', finished_at = planq_clock(), wake_at = NULL, deadline = NULL,
            question_id = NULL
        WHERE job_id = ANY (v_ids) AND status = ANY (planq_step_unfinished());
        UPDATE jobs SET status = CASE id WHEN p_job THEN p_status ELSE 'cancelled' END, finished_at = planq_clock(),
            stage_worker = NULL, is_joined = is_joined OR id IS DISTINCT FROM p_job,
            error = CASE WHEN id = p_job AND p_error IS NOT NULL THEN p_error WHEN failed_steps > 0 THEN planq_first_failure(id) END,
            cancel_requested_at = CASE WHEN id IS DISTINCT FROM p_job OR p_status = 'cancelled' THEN planq_now() END,
            wake_at = NULL, deadline = NULL, paused_at = NULL, open_steps = 0, open_questions = 0, places = NULL,
            out_steps = NULL, held_steps = 0
        WHERE id = ANY (v_ids);
        INSERT INTO events (tenant_id, job_id, kind, data)
        SELECT tenant_id, id, 'job_' || status, planq_end_told(status, error) FROM jobs WHERE id = ANY (v_ids) ORDER BY id;
        v_ended := v_ended || v_ids;
    END LOOP;
    ASSERT p_job IS NULL OR p_job = ANY (v_ended), 'ended_twice';
    RETURN v_ended;
END $$;

-- PauseRequested: nothing of the job begins from now on, nor of any job below it. Each turn finds the jobs that were made meanwhile.
-- Returns {found, applied, status}.
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

-- Returns the unfinished jobs below a job whose pause began at `p_paused` (null: those that are not paused), locked in the order of
-- their ids. The caller holds the job.
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

-- ResumeRequested. Without `p_after` a paused job goes on, and so does what was paused with it. With `p_after`, the number of earlier
-- resumes that its caller has seen, a job that failed, or completed with failed steps, tries again what has not succeeded, and
-- delegates again; the steps get `p_seconds` (null: the limit on a plan). What it had before a chained tool is kept. Where
-- failures are recorded, only cancelled steps are tried again; without any, the next round is planned. An ended child job is not
-- resumed: its parent knows its end, and makes another one when it is resumed itself. A turn becomes its conversation's active
-- one again; `is_busy` where another one is active. `is_replaced` where the line of a batch was retried.
-- Returns {found, applied, status, round, stage_attempt, ready: [{index, pool, tool_name}], priority, agent, root, tenant}; the caller
-- publishes `ready`, or the stage of the status.
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
    ELSE
        IF j.batch_id IS NOT NULL THEN
            -- With this lock nobody retries the line before this transaction has ended.
            PERFORM FROM batch_lines WHERE batch_id = j.batch_id AND line = j.batch_line AND job_id = j.id FOR SHARE;
            IF NOT FOUND THEN
                RETURN json_build_object('found', true, 'applied', false, 'status', j.status, 'is_replaced', true);
            END IF;
        END IF;
        UPDATE conversations SET active_job_id = p_job WHERE id = c.id;
        SELECT r.status, r.again INTO v_status, v_again FROM planq_reopen_job(j, p_in_doubt, p_seconds) r;
    END IF;
    IF v_status = 'executing' THEN
        -- Ready steps that are not held are due again as if they had just become ready, retries when their time comes.
        WITH woken AS (
            UPDATE steps SET wakes = 0,
                wake_at = CASE WHEN run_at > planq_now() THEN run_at ELSE planq_now() + planq_wake_grace() END
            WHERE job_id = j.id AND round = j.round AND status = ANY (planq_step_ready()) AND wake_at IS NOT NULL
            RETURNING index, pool, tool_name, run_at, path
        )
        SELECT coalesce(json_agg(json_build_object('index', index, 'pool', pool, 'tool_name', tool_name) ORDER BY path DESC, index)
            FILTER (WHERE run_at <= planq_now()), '[]') INTO v_ready FROM woken;
    END IF;
    PERFORM planq_append_event(j.tenant_id, p_job, 'job_resumed',
        json_build_object('from', j.status, 'again', v_again, 'answer', j.answer, 'preview', j.preview, 'error', j.error));
    RETURN json_build_object('found', true, 'applied', true, 'status', v_status, 'round', j.round,
        'stage_attempt', j.stage_attempt, 'ready', v_ready, 'priority', j.priority, 'agent', j.agent_name,
        'root', coalesce(j.root_job_id, j.id), 'tenant', j.tenant_id);
END $$;

-- Lets the paused job `j` go on, and what was paused with it: their times move by the length of the pause. What is due below is due at
-- once, for the sweeper. The caller holds the job and all jobs above.
CREATE FUNCTION planq_end_pause(j jobs) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_pause CONSTANT interval := planq_now() - j.paused_at;
    v_below CONSTANT uuid[] := planq_below(j.id, j.paused_at);
BEGIN
    PERFORM planq_credit_pause(j.id);
    UPDATE steps SET wakes = 0,
        wake_at = CASE WHEN status = ANY (planq_step_ready()) THEN greatest(run_at, planq_now()) ELSE wake_at + v_pause END
    WHERE job_id = ANY (j.id || v_below)
      AND ((status = ANY (planq_step_ready()) AND wake_at IS NOT NULL AND job_id <> j.id)
           OR (status = ANY (planq_step_waiting()) AND question_id IS NOT NULL));
    UPDATE jobs SET paused_at = NULL, deadline = deadline + v_pause, expires_at = expires_at + v_pause,
        rounds_deadline = rounds_deadline + v_pause, wakes = 0,
        wake_at = CASE WHEN wake_at IS NOT NULL
            THEN greatest(run_at, planq_now() + CASE id WHEN j.id THEN planq_wake_grace() ELSE '0' END) END
    WHERE id = ANY (j.id || v_below);
    INSERT INTO events (tenant_id, job_id, kind, data)
    SELECT tenant_id, id, 'job_resumed', json_build_object('from', status, 'again', 0) FROM jobs WHERE id = ANY (v_below);
END $$;

-- Lets the ended job `j` run again where it stood. Every step of its round without success starts afresh, without its child jobs,
-- except a step whose failure was known when the plan was accepted; where failures are recorded, every cancelled step. The tools
-- of the steps `p_in_doubt` first find out whether an earlier attempt took effect, once that attempt can act no more: its worker
-- was asked to stop and, unless the worker is known to be gone, the time of the call is over. The cost grows with the number of
-- the plan's dependencies. Returns the job's status and how many steps are open again. The caller holds the job.
CREATE FUNCTION planq_reopen_job(j jobs, p_in_doubt int[], p_seconds float8) RETURNS TABLE (status text, again int)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_chained CONSTANT boolean := EXISTS (
        SELECT FROM plans WHERE job_id = j.id AND round = j.round AND source = 'chained');
    v_again int;
    v_status text;
    v_places int;
    v_out int;
    v_held int := 0;
BEGIN
    WITH open AS MATERIALIZED (
        SELECT s.index, s.dependents FROM steps s
        WHERE s.job_id = j.id AND s.round = j.round
          AND CASE j.on_failure WHEN 'record' THEN s.status = 'cancelled'
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
    FROM counted c WHERE s.job_id = j.id AND s.round = j.round AND s.index = c.index;
    GET DIAGNOSTICS v_again = ROW_COUNT;
    -- A fresh start asks anew.
    UPDATE questions q SET is_spent = true FROM steps s
    WHERE q.job_id = j.id AND NOT q.is_spent AND s.job_id = j.id AND s.index = q.step_index
      AND s.status = ANY (planq_step_unstarted());
    IF v_again > planq_least_window() THEN  -- beyond its window steps are held
        v_places := planq_places(j.priority);
        UPDATE steps SET wake_at = NULL WHERE job_id = j.id AND round = j.round AND index IN (
            SELECT s.index FROM steps s WHERE s.job_id = j.id AND s.round = j.round AND s.status = ANY (planq_step_ready())
            ORDER BY s.path DESC, s.index OFFSET v_places);
        GET DIAGNOSTICS v_held = ROW_COUNT;
        SELECT count(*) INTO v_out FROM steps s
        WHERE s.job_id = j.id AND s.round = j.round AND s.status = ANY (planq_step_ready()) AND s.wake_at IS NOT NULL;
    END IF;
    v_status := CASE
        WHEN v_again > 0 THEN 'executing'
        WHEN EXISTS (SELECT FROM steps WHERE job_id = j.id AND round = j.round)
          OR (j.respond = 'model'
              AND EXISTS (SELECT FROM plans WHERE job_id = j.id AND round = j.round AND errors IS NOT NULL))
        THEN 'responding' ELSE 'queued' END;
    UPDATE jobs SET status = v_status, open_steps = v_again, places = v_places, out_steps = v_out,
        held_steps = v_held, failed_steps = 0, halt_index = NULL, open_questions = 0,
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
    RETURN QUERY SELECT v_status, v_again;
END $$;
