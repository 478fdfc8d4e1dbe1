-- What people ask of a job: pause, resume, settle. The specification is shared/domain/advance.py.

-- PauseRequested: nothing of the job is begun from now on. Returns {found, landed, status}.
CREATE FUNCTION planq_pause_job(p_job uuid, p_tenant text) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
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
    RETURN json_build_object('found', true, 'landed', true, 'status', j.status);
END $$;

-- The ready steps of a round, due again as if they had just become ready, retries when their time comes; the caller
-- publishes those that are returned, and holds the job.
CREATE FUNCTION planq_rewake_steps(p_job uuid, p_round int) RETURNS json LANGUAGE sql AS $$
    WITH woken AS (
        UPDATE steps SET wake_at = CASE WHEN run_at > now() THEN run_at ELSE now() + planq_wake_grace() END, wakes = 0
        WHERE job_id = p_job AND round = p_round AND status = 'ready'
        RETURNING index, lane, tool_name, run_at
    )
    SELECT coalesce(
        json_agg(json_build_object('index', index, 'lane', lane, 'tool_name', tool_name) ORDER BY index)
            FILTER (WHERE run_at <= now()), '[]')
    FROM woken
$$;

-- Gives every step without success a fresh start; `p_unsure` lists those whose tool has to find out first whether an
-- earlier attempt took effect, not before whoever ran it has been told to stop. Returns how many there are. The caller
-- holds the job's row.
CREATE FUNCTION planq_reopen_steps(p_job uuid, p_round int, p_unsure int[]) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_count int;
BEGIN
    WITH done AS (
        SELECT coalesce(array_agg(index), '{}') AS indices FROM steps
        WHERE job_id = p_job AND round = p_round AND status = 'succeeded'
    ), counted AS (
        SELECT s.index, (SELECT count(*)::int FROM unnest(s.depends_on) d WHERE d <> ALL (done.indices)) AS pending
        FROM steps s, done WHERE s.job_id = p_job AND s.round = p_round AND s.status <> 'succeeded'
    )
    UPDATE steps s SET
        status = CASE WHEN c.pending = 0 THEN 'ready' ELSE 'pending' END,
        pending = c.pending,
        unsure = s.index = ANY (p_unsure),
        output = NULL, error = NULL, question = NULL, finished_at = NULL, started_at = NULL, asked_at = NULL,
        worker_id = NULL,
        deadline = NULL, worker_losses = 0, releases = s.attempt, wakes = 0,
        run_at = greatest(now(), CASE WHEN s.index = ANY (p_unsure) THEN s.finished_at + planq_wake_grace() END),
        wake_at = CASE WHEN c.pending = 0 THEN now() + planq_wake_grace() END
    FROM counted c WHERE s.job_id = p_job AND s.round = p_round AND s.index = c.index;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- ResumeRequested: a paused job goes on, its times moved by the length of the pause; one that failed, or completed with
-- failed steps, tries again what has not succeeded. The second only if `p_after` is how often it has been resumed: else
-- what is to be tried again has not been looked at; the first only if `p_after` is NULL.
-- Returns {found, landed, status, round, attempt, ready: [{index, lane, tool_name}]}; the caller publishes `ready`, or
-- the stage that the status stands for.
CREATE FUNCTION planq_resume_job(p_job uuid, p_tenant text, p_after int, p_unsure int[]) RETURNS json
LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    v_pause interval;
    v_status text;
    v_again int := 0;
    v_ready json := '[]';
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job AND tenant_id = p_tenant FOR NO KEY UPDATE;
    IF j.id IS NULL THEN
        RETURN json_build_object('found', false, 'landed', false);
    END IF;
    IF (j.status = 'cancelled' OR (j.status = 'completed' AND j.failed_steps = 0))
       OR (j.status NOT IN ('completed', 'failed') AND (j.paused_at IS NULL OR p_after IS NOT NULL))
       OR (j.status IN ('completed', 'failed') AND j.resumes IS DISTINCT FROM p_after) THEN
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
    ELSE
        v_again := planq_reopen_steps(p_job, j.round, p_unsure);
        v_status := CASE
            WHEN v_again > 0 THEN 'executing'
            WHEN EXISTS (SELECT FROM steps WHERE job_id = p_job AND round = j.round)
              OR EXISTS (SELECT FROM plans WHERE job_id = p_job AND round = j.round AND errors IS NOT NULL)
            THEN 'responding' ELSE 'queued' END;
        UPDATE jobs SET status = v_status, open_steps = v_again, failed_steps = 0, halt_index = NULL, open_questions = 0,
            resumes = resumes + 1, stage_losses = 0, stage_worker = NULL, answer = NULL, error = NULL,
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

-- StepSettled: the question of a waiting step is answered with `p_outcome` (happened | did_not_happen | unknown), or,
-- with `p_due`, its time has run out. The output of what happened comes as in planq_finish_step.
-- Returns {found, landed, round, status, job_status, ready}; `found` says whether the job has this step.
CREATE FUNCTION planq_settle_step(
    p_job uuid, p_tenant text, p_index int, p_outcome text, p_output json, p_error json, p_artifact json,
    p_hash bytea, p_bytes bigint, p_excerpts json, p_due boolean
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    s steps%ROWTYPE;
    v_rest interval;
    v_moved json;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job AND tenant_id = p_tenant FOR NO KEY UPDATE;
    SELECT * INTO s FROM steps WHERE job_id = p_job AND round = j.round AND index = p_index;
    IF j.id IS NULL OR s.job_id IS NULL THEN
        RETURN json_build_object('found', false, 'landed', false);
    END IF;
    IF j.status NOT IN ('executing', 'input_required') OR s.status <> 'waiting' OR s.question IS NULL
       OR (p_due AND (s.wake_at > now() OR j.paused_at IS NOT NULL)) THEN
        RETURN json_build_object('found', true, 'landed', false, 'status', s.status, 'job_status', j.status);
    END IF;
    -- While the job is paused the wait stands still, and resuming moves the deadlines by the whole pause.
    v_rest := greatest(s.wake_at - coalesce(j.paused_at, now()), interval '0');
    UPDATE steps SET status = 'running', question = NULL, wake_at = NULL, unsure = false
    WHERE job_id = p_job AND round = j.round AND index = p_index;
    UPDATE jobs SET open_questions = open_questions - 1,
        status = CASE WHEN open_questions = 1 THEN 'executing' ELSE status END,
        deadline = deadline - v_rest, expires_at = expires_at - v_rest
    WHERE id = p_job;
    PERFORM planq_tell(j.tenant_id, p_job, 'step_settled',
        json_build_object('round', j.round, 'index', p_index, 'outcome', p_outcome));
    v_moved := CASE p_outcome
        WHEN 'did_not_happen' THEN planq_hand_back_step(p_job, j.round, p_index, s.attempt)
        ELSE planq_finish_step(p_job, j.round, p_index, s.attempt, p_outcome = 'happened', p_output, p_error, NULL,
                               false, p_artifact, p_hash, p_bytes, p_excerpts, false) END;
    RETURN json_build_object('found', true, 'landed', true, 'round', j.round, 'status', v_moved->'status',
        'job_status', v_moved->'job_status', 'stage_attempt', j.stage_attempt, 'ready', v_moved->'ready');
END $$;
