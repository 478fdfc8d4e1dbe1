-- Suspending, skipping, handing back, pausing and resuming where there are child jobs (release 0005); what changed is
-- said at each.

-- As in 0002, except that a child job gets no more time by waiting: it has what whoever delegated to it allows.
CREATE OR REPLACE FUNCTION planq_suspend_step(
    p_job uuid, p_round int, p_index int, p_attempt int, p_delay interval, p_output json
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status NOT IN ('executing', 'input_required') THEN
        RETURN false;
    END IF;
    UPDATE steps SET status = 'waiting', output = p_output, wake_at = now() + p_delay, worker_id = NULL,
        deadline = NULL
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = 'running' AND attempt = p_attempt;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE jobs SET deadline = deadline + p_delay,
        expires_at = expires_at + CASE WHEN parent_job_id IS NULL THEN p_delay ELSE interval '0' END
    WHERE id = p_job;
    PERFORM planq_tell(j.tenant_id, p_job, 'step_waiting',
        json_build_object('round', p_round, 'index', p_index, 'seconds', extract(epoch FROM p_delay)));
    RETURN true;
END $$;

-- As in 0001; a step that has gathered has begun, so it goes on, as one that runs does.
CREATE OR REPLACE FUNCTION planq_skip_after(p_job uuid, p_round int, p_index int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_count int;
BEGIN
    WITH RECURSIVE doomed (index) AS (
        SELECT index FROM steps
        WHERE job_id = p_job AND round = p_round
          AND (index = p_index OR (index > p_index AND status IN ('pending', 'ready') AND NOT gathered))
        UNION
        SELECT unnest(s.dependents) FROM doomed d
        JOIN steps s ON s.job_id = p_job AND s.round = p_round AND s.index = d.index
    )
    UPDATE steps SET status = 'skipped', finished_at = clock_timestamp(), wake_at = NULL
    WHERE job_id = p_job AND round = p_round AND status IN ('pending', 'ready') AND NOT gathered
      AND index IN (SELECT index FROM doomed);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- As in 0002; what has gathered is not skipped.
CREATE OR REPLACE FUNCTION planq_hand_back_step(p_job uuid, p_round int, p_index int, p_attempt int) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    s steps%ROWTYPE;
    v_late boolean;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status NOT IN ('executing', 'input_required') OR j.round <> p_round THEN
        RETURN json_build_object('landed', false);
    END IF;
    v_late := coalesce(p_index > j.halt_index, false);
    UPDATE steps SET status = CASE WHEN v_late AND NOT gathered THEN 'skipped' ELSE 'ready' END, run_at = now(), wakes = 0,
        wake_at = CASE WHEN gathered OR NOT v_late THEN now() + planq_wake_grace() END,
        finished_at = CASE WHEN v_late AND NOT gathered THEN clock_timestamp() END,
        worker_id = NULL, deadline = NULL, releases = releases + 1,
        started_at = CASE WHEN gathered THEN started_at END, asked_at = NULL
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = 'running' AND attempt = p_attempt
    RETURNING * INTO s;
    IF NOT FOUND THEN
        RETURN json_build_object('landed', false);
    END IF;
    PERFORM planq_tell(j.tenant_id, p_job, 'step_released',
        json_build_object('round', p_round, 'index', p_index, 'attempt', p_attempt));
    IF s.status = 'skipped' THEN
        RETURN json_build_object('landed', true, 'status', s.status, 'ready', '[]'::json,
            'stage_attempt', j.stage_attempt,
            'job_status', planq_close_steps(p_job, 1 + planq_skip_after(p_job, p_round, p_index), 0));
    END IF;
    RETURN json_build_object('landed', true, 'status', s.status, 'job_status', j.status,
        'ready', json_build_array(json_build_object('index', s.index, 'lane', s.lane, 'tool_name', s.tool_name)));
END $$;

-- The unfinished jobs below a job whose pause began at `p_paused` (null: those that are not paused), locked in the order
-- of their ids.
CREATE FUNCTION planq_below(p_job uuid, p_paused timestamptz) RETURNS uuid[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_unfinished CONSTANT text[] := '{queued,planning,executing,input_required,responding}';
BEGIN
    RETURN (
        WITH RECURSIVE tree (id) AS (
            SELECT p_job
            UNION
            SELECT c.id FROM tree t JOIN jobs c ON c.parent_job_id = t.id AND c.status = ANY (v_unfinished)
        )
        SELECT array_agg(l.id) FROM (
            SELECT id FROM jobs WHERE id IN (SELECT t.id FROM tree t) AND id <> p_job
              AND status = ANY (v_unfinished) AND paused_at IS NOT DISTINCT FROM p_paused
            ORDER BY id FOR NO KEY UPDATE
        ) l
    );
END $$;

-- As in 0002, with everything below the job; one that is made meanwhile by one of these is found in the next turn.
CREATE OR REPLACE FUNCTION planq_pause_job(p_job uuid, p_tenant text) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    v_below uuid[];
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job AND tenant_id = p_tenant FOR NO KEY UPDATE;
    IF j.id IS NULL THEN
        RETURN json_build_object('found', false, 'landed', false);
    END IF;
    IF j.status IN ('completed', 'failed', 'cancelled') OR j.paused_at IS NOT NULL THEN
        RETURN json_build_object('found', true, 'landed', false, 'status', j.status);
    END IF;
    UPDATE jobs SET paused_at = now() WHERE id = p_job;
    PERFORM planq_tell(j.tenant_id, p_job, 'job_paused', NULL);
    LOOP
        v_below := planq_below(p_job, NULL);
        EXIT WHEN v_below IS NULL;
        UPDATE jobs SET paused_at = now() WHERE id = ANY (v_below);
        INSERT INTO events (tenant_id, job_id, kind) SELECT j.tenant_id, b, 'job_paused' FROM unnest(v_below) b;
    END LOOP;
    RETURN json_build_object('found', true, 'landed', true, 'status', j.status);
END $$;

-- Lets what was paused with a job go on with it: its times are moved by the length of the pause, and what is due of it
-- is due at once, for the sweeper. The caller holds the job's row.
CREATE FUNCTION planq_resume_below(p_job uuid, p_paused timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_pause CONSTANT interval := now() - p_paused;
    v_below CONSTANT uuid[] := planq_below(p_job, p_paused);
BEGIN
    IF v_below IS NULL THEN
        RETURN;
    END IF;
    UPDATE steps SET wakes = 0,
        wake_at = CASE WHEN status = 'ready' THEN greatest(run_at, now()) ELSE wake_at + v_pause END
    WHERE job_id = ANY (v_below) AND (status = 'ready' OR (status = 'waiting' AND question IS NOT NULL));
    UPDATE jobs SET paused_at = NULL, deadline = deadline + v_pause, expires_at = expires_at + v_pause,
        wake_at = CASE WHEN wake_at IS NOT NULL THEN greatest(run_at, now()) END, wakes = 0
    WHERE id = ANY (v_below);
    INSERT INTO events (tenant_id, job_id, kind, data)
    SELECT tenant_id, id, 'job_resumed', json_build_object('from', status, 'again', 0) FROM jobs WHERE id = ANY (v_below);
END $$;

-- As in 0002, and what was paused with the job goes on with it. What is tried again delegates anew. A child job that has
-- ended is not resumed: its parent has been told of its end, and makes a new one when it is resumed itself. What a job
-- had come to before a chained tool is kept while that tool is tried again.
CREATE OR REPLACE FUNCTION planq_resume_job(p_job uuid, p_tenant text, p_after int, p_unsure int[]) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    v_pause interval;
    v_status text;
    v_again int := 0;
    v_ready json := '[]';
    v_chained boolean;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job AND tenant_id = p_tenant FOR NO KEY UPDATE;
    IF j.id IS NULL THEN
        RETURN json_build_object('found', false, 'landed', false);
    END IF;
    IF (j.status = 'cancelled' OR (j.status = 'completed' AND j.failed_steps = 0))
       OR (j.status NOT IN ('completed', 'failed') AND (j.paused_at IS NULL OR p_after IS NOT NULL))
       OR (j.status IN ('completed', 'failed') AND (j.resumes IS DISTINCT FROM p_after OR j.parent_job_id IS NOT NULL))
    THEN
        RETURN json_build_object('found', true, 'landed', false, 'status', j.status);
    END IF;
    IF j.status NOT IN ('completed', 'failed') THEN
        v_status := j.status;
        v_pause := now() - j.paused_at;
        UPDATE steps SET wake_at = wake_at + v_pause
        WHERE job_id = p_job AND status = 'waiting' AND question IS NOT NULL;
        UPDATE jobs SET paused_at = NULL, deadline = deadline + v_pause, expires_at = expires_at + v_pause,
            wake_at = CASE WHEN wake_at IS NOT NULL THEN greatest(run_at, now() + planq_wake_grace()) END, wakes = 0
        WHERE id = p_job;
        PERFORM planq_resume_below(p_job, j.paused_at);
    ELSE
        v_again := planq_reopen_steps(p_job, j.round, p_unsure);
        UPDATE steps SET gathered = false, children = NULL, open_children = NULL, next_child = NULL, waits_for = NULL,
            max_parallel = NULL, note = NULL
        WHERE job_id = p_job AND round = j.round AND children IS NOT NULL AND status <> 'succeeded';
        v_status := CASE
            WHEN v_again > 0 THEN 'executing'
            WHEN EXISTS (SELECT FROM steps WHERE job_id = p_job AND round = j.round)
              OR EXISTS (SELECT FROM plans WHERE job_id = p_job AND round = j.round AND errors IS NOT NULL)
            THEN 'responding' ELSE 'queued' END;
        v_chained := EXISTS (SELECT FROM plans WHERE job_id = p_job AND round = j.round AND source = 'chained');
        UPDATE jobs SET status = v_status, open_steps = v_again, failed_steps = 0, halt_index = NULL, open_questions = 0,
            resumes = resumes + 1, stage_losses = 0, stage_worker = NULL, error = NULL, chained = NULL,
            answer = CASE WHEN v_chained THEN answer END, output = CASE WHEN v_chained THEN output END,
            finished_at = NULL, run_at = now(), wakes = 0,
            wake_at = CASE WHEN v_status <> 'executing' THEN now() + planq_wake_grace() END,
            deadline = CASE WHEN v_status = 'executing'
                THEN now() + make_interval(secs => (limits->>'plan_timeout_seconds')::float8) END,
            expires_at = now() + make_interval(secs => (limits->>'job_timeout_seconds')::float8)
        WHERE id = p_job;
    END IF;
    IF v_status IN ('executing', 'input_required') THEN
        v_ready := planq_rewake_steps(p_job, j.round);
    END IF;
    PERFORM planq_tell(j.tenant_id, p_job, 'job_resumed',
        json_build_object('from', j.status, 'again', v_again, 'answer', j.answer, 'error', j.error));
    RETURN json_build_object('found', true, 'landed', true, 'status', v_status, 'round', j.round,
        'attempt', j.stage_attempt, 'ready', v_ready);
END $$;
