-- Wait: a step waits for a timer or for a person, without a worker.
--
-- planq_suspend_step -> planq_fire_timer         a timer, after which the step succeeds
-- planq_ask_step -> planq_settle_step            a question to a person: did the call that was cut off take effect?

-- StepSuspended: the step waits for a timer and will succeed with `p_output`; the wait counts against neither the plan's
-- time nor the job's. A child job gets no more time by waiting: it has what whoever delegated to it allows. Returns
-- whether it applied.
CREATE FUNCTION planq_suspend_step(
    p_job uuid, p_round int, p_index int, p_attempt int, p_delay interval, p_output json
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status NOT IN ('executing', 'input_required') THEN
        RETURN false;
    END IF;
    UPDATE steps SET status = 'waiting', output = p_output, wake_at = planq_now() + p_delay, worker_id = NULL,
        deadline = NULL
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = 'running' AND attempt = p_attempt;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE jobs SET deadline = deadline + p_delay,
        expires_at = expires_at + CASE WHEN parent_job_id IS NULL THEN p_delay ELSE interval '0' END
    WHERE id = p_job;
    PERFORM planq_append_event(j.tenant_id, p_job, 'step_waiting',
        json_build_object('round', p_round, 'index', p_index, 'seconds', extract(epoch FROM p_delay)));
    RETURN true;
END $$;

-- The timer of a waiting step has run out: it succeeds with the output it was suspended with. Returns as
-- planq_finish_step does.
CREATE FUNCTION planq_fire_timer(p_job uuid, p_round int, p_index int, p_attempt int) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    i planq_outcome;
BEGIN
    SELECT job_id, round, index, p_attempt, output INTO i.job, i.round, i.index, i.attempt, i.output
    FROM steps WHERE job_id = p_job AND round = p_round AND index = p_index;
    RETURN planq_finish_step(i);
END $$;

-- StepAsked: a call was cut off, and a person has to say whether it took effect. The job's limit bounds the wait, which
-- counts against neither the plan's time nor the job's; while the job is paused the wait has not begun.
-- Returns whether it applied.
CREATE FUNCTION planq_ask_step(
    p_job uuid, p_round int, p_index int, p_attempt int, p_error json, p_question json, p_lost boolean
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    v_wait interval;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status NOT IN ('executing', 'input_required') OR j.round <> p_round THEN
        RETURN false;
    END IF;
    v_wait := make_interval(secs => coalesce((j.limits->>'human_wait_seconds')::float8, 86400));
    UPDATE steps SET status = 'waiting', question = p_question, asked_at = planq_now(), error = p_error,
        wake_at = coalesce(j.paused_at, planq_now()) + v_wait, worker_id = NULL, deadline = NULL,
        worker_losses = worker_losses + CASE WHEN p_lost THEN 1 ELSE 0 END
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = 'running' AND attempt = p_attempt;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE jobs SET status = 'input_required', open_questions = open_questions + 1, deadline = deadline + v_wait,
        expires_at = expires_at + v_wait
    WHERE id = p_job;
    PERFORM planq_append_event(j.tenant_id, p_job, 'step_asking',
        json_build_object('round', p_round, 'index', p_index, 'attempt', p_attempt, 'error', p_error));
    RETURN true;
END $$;

-- StepSettled: the question of a waiting step is answered with `p_outcome` (happened | did_not_happen | unknown), or,
-- with `p_due`, its time has run out. `p_item` is a `planq_outcome` of the job's step `index`: the output of what happened,
-- or the error of what stays unknown.
-- Returns {found, applied, round, status, job_status, ready}; `found` says whether the job has this step.
CREATE FUNCTION planq_settle_step(p_tenant text, p_outcome text, p_due boolean, p_item json) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    i planq_outcome := json_populate_record(NULL::planq_outcome, p_item);
    j jobs%ROWTYPE;
    s steps%ROWTYPE;
    v_rest interval;
    v_moved json;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = i.job AND tenant_id = p_tenant FOR NO KEY UPDATE;
    SELECT * INTO s FROM steps WHERE job_id = i.job AND round = j.round AND index = i.index;
    IF j.id IS NULL OR s.job_id IS NULL THEN
        RETURN json_build_object('found', false, 'applied', false);
    END IF;
    IF j.status NOT IN ('executing', 'input_required') OR s.status <> 'waiting' OR s.question IS NULL
       OR (p_due AND (s.wake_at > planq_now() OR j.paused_at IS NOT NULL)) THEN
        RETURN json_build_object('found', true, 'applied', false, 'status', s.status, 'job_status', j.status);
    END IF;
    -- While the job is paused the wait stands still, and resuming moves the deadlines by the whole pause.
    v_rest := greatest(s.wake_at - coalesce(j.paused_at, planq_now()), interval '0');
    UPDATE steps SET status = 'running', question = NULL, wake_at = NULL, in_doubt = false
    WHERE job_id = i.job AND round = j.round AND index = i.index;
    UPDATE jobs SET open_questions = open_questions - 1,
        status = CASE WHEN open_questions = 1 THEN 'executing' ELSE status END,
        deadline = deadline - v_rest, expires_at = expires_at - v_rest
    WHERE id = i.job;
    PERFORM planq_append_event(j.tenant_id, i.job, 'step_settled',
        json_build_object('round', j.round, 'index', i.index, 'outcome', p_outcome));
    i.round := j.round;
    i.attempt := s.attempt;
    v_moved := CASE p_outcome
        WHEN 'did_not_happen' THEN planq_hand_back_step(i.job, i.round, i.index, i.attempt)
        ELSE planq_finish_step(i) END;
    RETURN json_build_object('found', true, 'applied', true, 'round', j.round, 'status', v_moved->'status',
        'job_status', v_moved->'job_status', 'stage_attempt', j.stage_attempt, 'ready', v_moved->'ready');
END $$;
