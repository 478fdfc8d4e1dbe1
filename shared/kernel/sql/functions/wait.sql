-- Wait: a step waits for a timer or for a person, without a worker.
--
-- planq_suspend_step -> planq_fire_timer         a timer, after which the step succeeds
-- planq_ask_step -> planq_answer_question        a question to a person, until it is answered or its time runs out
-- planq_end_waits                                questions whose steps end otherwise are closed
--
-- The time that people take is taken off no deadline: a question moves those of its job and of all jobs above it by the
-- whole time that it may wait, and whatever closes it takes back what is left of that (planq_shift_lineage). The rows of
-- a lineage are locked from the outermost job down, before any step (planq_lock_lineages). Questions that wait at the same
-- time count one by one.

-- StepSuspended: the step waits for a timer and will succeed with `p_output`; the wait counts against neither the plan's
-- time nor the job's. A child job gets no more time by waiting: it has what its parent allows. Returns
-- whether it applied: `p_worker` must own the attempt.
CREATE FUNCTION planq_suspend_step(
    p_job uuid, p_round int, p_index int, p_attempt int, p_worker uuid, p_delay interval, p_output json
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status <> 'executing' THEN
        RETURN false;
    END IF;
    UPDATE steps SET status = 'waiting', output = p_output, wake_at = planq_now() + p_delay, worker_id = NULL,
        deadline = NULL
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = ANY (planq_step_running()) AND attempt = p_attempt
      AND worker_id = p_worker;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE jobs SET deadline = deadline + p_delay, out_steps = out_steps - 1,
        expires_at = expires_at + CASE WHEN parent_job_id IS NULL THEN p_delay ELSE interval '0' END
    WHERE id = p_job;
    PERFORM planq_append_event(j.tenant_id, p_job, 'step_waiting',
        json_build_object('round', p_round, 'index', p_index, 'seconds', extract(epoch FROM p_delay)));
    RETURN true;
END $$;

-- The timer of a waiting step has run out: it succeeds with the output it was suspended with. Returns as
-- planq_finish_step does, which finds no step of nothing: its time may not have come yet, for a pause moves it.
CREATE FUNCTION planq_fire_timer(p_job uuid, p_round int, p_index int, p_attempt int) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    i planq_outcome;
BEGIN
    SELECT job_id, round, index, p_attempt, output INTO i.job, i.round, i.index, i.attempt, i.output
    FROM steps WHERE job_id = p_job AND round = p_round AND index = p_index
      AND status = ANY (planq_step_waiting()) AND wake_at <= planq_now();
    RETURN planq_finish_step(i);
END $$;

-- StepAsked: the step waits until a person has answered, at most for the job's limit; a pause of the job postpones the wait. `p_question`
-- is {id, kind, message, schema, url, details, default, ordinal, state, asked_of, asked_ids, call, is_secret}, where `schema`,
-- `details`, `default` and `state` are texts that hold JSON, and `is_secret` may be left out. `p_ahead` lists such questions about
-- steps that have not begun, each with the index of its `step`. Where an approval of the same `call` was asked ahead, the step
-- waits for that one, or is handed back with its answer. `p_error` is why a call was cut off. Returns whether it applied: a
-- `p_worker` must own the attempt, the sweeper has none.
CREATE FUNCTION planq_ask_step(
    p_job uuid, p_round int, p_index int, p_attempt int, p_worker uuid, p_error json, p_question json, p_lost boolean, p_ahead json
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j jobs%ROWTYPE;
    q record;
    o record;
    v_ahead questions;
    v_wait interval;
    v_due timestamptz;
BEGIN
    PERFORM planq_lock_lineages(ARRAY[p_job]);
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status <> 'executing' OR j.round <> p_round THEN
        RETURN false;
    END IF;
    SELECT * INTO q FROM json_to_record(p_question) AS r (
        id uuid, kind text, message text, schema text, url text, details text, "default" text, ordinal int, state text,
        asked_of text, asked_ids text[], call text, is_secret boolean
    );
    SELECT * INTO v_ahead FROM questions
    WHERE job_id = p_job AND step_index = p_index AND waiting_since IS NULL AND NOT is_spent AND call_sha256 = q.call
      AND (status = 'open' OR asked_of = q.asked_of)
    ORDER BY id DESC LIMIT 1;
    IF v_ahead.status <> 'open' THEN
        IF NOT (planq_hand_back_step(p_job, p_round, p_index, p_attempt, p_worker)->>'applied')::boolean THEN
            RETURN false;
        END IF;
        UPDATE steps SET wake_at = planq_now() WHERE job_id = p_job AND index = p_index AND status = ANY (planq_step_ready());
        RETURN true;
    END IF;
    v_wait := make_interval(secs => coalesce((j.limits->>'human_wait_seconds')::float8, 86400));
    v_due := coalesce(j.paused_at, planq_now()) + v_wait;
    UPDATE steps SET status = 'waiting', question_id = coalesce(v_ahead.id, q.id), asked_at = planq_now(), error = p_error,
        wake_at = v_due, worker_id = NULL, deadline = NULL,
        worker_losses = worker_losses + CASE WHEN p_lost THEN 1 ELSE 0 END
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = ANY (planq_step_running()) AND attempt = p_attempt
      AND coalesce(worker_id = p_worker, p_worker IS NULL);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO questions (id, tenant_id, job_id, root_job_id, in_message_flow, round, step_index, attempt, ordinal, kind, message,
                           schema, url, details, default_content, state, asked_of, asked_ids, call_sha256, is_secret,
                           waiting_since, created_at)
    VALUES (coalesce(v_ahead.id, q.id), j.tenant_id, p_job, coalesce(j.root_job_id, p_job), j.in_message_flow, p_round, p_index,
            p_attempt, coalesce(q.ordinal, 0), q.kind, q.message, q.schema::json, q.url, q.details::json, q."default"::json, q.state::json,
            coalesce(q.asked_of, 'anyone'), q.asked_ids, q.call, coalesce(q.is_secret, false), planq_now(), planq_now())
    ON CONFLICT (id) DO UPDATE SET attempt = excluded.attempt, details = excluded.details, asked_of = excluded.asked_of,
        asked_ids = excluded.asked_ids, waiting_since = excluded.waiting_since;
    UPDATE jobs SET open_questions = open_questions + 1, out_steps = out_steps - 1 WHERE id = p_job;
    PERFORM planq_shift_lineage(p_job, v_wait);
    PERFORM planq_append_event(j.tenant_id, p_job, 'step_asking', json_build_object(
        'round', p_round, 'index', p_index, 'attempt', p_attempt, 'error', p_error,
        'elicitation', coalesce(v_ahead.id, q.id), 'kind', q.kind));
    -- Steps of the round that have not begun are asked about, too: an answer is used once its step's turn comes, and nothing waits
    -- for it until then.
    FOR o IN SELECT * FROM json_to_recordset(p_ahead) AS r (
        step int, id uuid, kind text, message text, schema text, details text, asked_of text, asked_ids text[], call text
    ) LOOP
        UPDATE steps SET is_asked_ahead = true
        WHERE job_id = p_job AND round = p_round AND index = o.step AND status = ANY (planq_step_unstarted())
          AND NOT EXISTS (SELECT FROM questions
                          WHERE job_id = p_job AND step_index = o.step AND kind = o.kind AND NOT is_spent);
        CONTINUE WHEN NOT FOUND;
        INSERT INTO questions (id, tenant_id, job_id, root_job_id, in_message_flow, round, step_index, attempt, kind,
                               message, schema, details, asked_of, asked_ids, call_sha256, created_at)
        VALUES (o.id, j.tenant_id, p_job, coalesce(j.root_job_id, p_job), j.in_message_flow, p_round, o.step, 0, o.kind, o.message,
                o.schema::json, o.details::json, o.asked_of, o.asked_ids, o.call, planq_now());
        PERFORM planq_append_event(j.tenant_id, p_job, 'asked_ahead', json_build_object(
            'round', p_round, 'index', o.step, 'elicitation', o.id, 'kind', o.kind));
    END LOOP;
    -- Who waits for the end of one of these jobs has to learn of the question first.
    PERFORM pg_notify('planq_ended', array_to_string(planq_lineage(p_job), ','));
    RETURN true;
END $$;

-- The name under which the secret fields of an answer are stored among the secrets of its tenant.
CREATE FUNCTION planq_sealed_as(p_id uuid) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'answer/' || p_id $$;

-- Withdraws a question that was asked ahead of a step that has ended, and erases the secrets of answers to it.
CREATE FUNCTION planq_tidy_step() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE questions SET status = 'cancelled', answered_at = planq_clock()
    WHERE job_id = NEW.job_id AND step_index = NEW.index AND status = 'open' AND waiting_since IS NULL;
    DELETE FROM tenant_secrets t USING questions q
    WHERE q.job_id = NEW.job_id AND q.step_index = NEW.index AND q.is_secret
      AND t.tenant_id = q.tenant_id AND t.name = planq_sealed_as(q.id);
    RETURN NULL;
END $$;

-- Every end of a step sets its time. Only steps that were asked about ahead, or handed back by an answer, have anything to tidy.
CREATE TRIGGER planq_tidy_step AFTER UPDATE OF finished_at ON steps FOR EACH ROW
    WHEN ((NEW.is_asked_ahead OR NEW.releases > 0) AND NEW.finished_at IS NOT NULL) EXECUTE FUNCTION planq_tidy_step();

-- StepSettled: an open question is answered, or, with `p_due`, its time has run out. `p_answer` is {status, content, reason,
-- answered_by, channel, key, key_id, is_operator, sealed, sealed_key}, `content` as a text that holds JSON, `sealed` in base64
-- what of it is secret, and `sealed_key` the id of the master key; who is not asked (planq_may_answer)
-- changes nothing, and is told `asked_of` whom it is. With `p_again` the step is tried again, and its next claim
-- brings the answer, as the first claim does of a step that was asked about ahead; else it ends as `p_item` says, a `planq_outcome` without its place: with the output that it now has, or
-- with an error.
-- Returns {found, applied, asked_of, job_id, round, index, status, job_status, stage_attempt, ready}; `found` says whether the tenant
-- has this question, `status` is the step's.
CREATE FUNCTION planq_answer_question(
    p_tenant text, p_id uuid, p_answer json, p_due boolean, p_again boolean, p_item json
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    i planq_outcome := json_populate_record(NULL::planq_outcome, p_item);
    a record;
    q questions%ROWTYPE;
    j jobs%ROWTYPE;
    s steps%ROWTYPE;
    v_result json;
BEGIN
    SELECT * INTO q FROM questions WHERE id = p_id AND tenant_id = p_tenant;
    IF q.id IS NULL THEN
        RETURN json_build_object('found', false, 'applied', false);
    END IF;
    PERFORM planq_lock_lineages(ARRAY[q.job_id]);
    SELECT * INTO j FROM jobs WHERE id = q.job_id FOR NO KEY UPDATE;
    SELECT * INTO q FROM questions WHERE id = p_id FOR NO KEY UPDATE;
    SELECT * INTO s FROM steps WHERE job_id = q.job_id AND index = q.step_index;
    IF q.id IS NULL OR s.job_id IS NULL THEN
        RETURN json_build_object('found', false, 'applied', false);
    END IF;
    IF q.status <> 'open' OR j.status <> 'executing'
       OR (q.waiting_since IS NOT NULL AND s.question_id IS DISTINCT FROM p_id)
       OR (p_due AND (s.wake_at > planq_now() OR j.paused_at IS NOT NULL)) THEN
        RETURN json_build_object('found', true, 'applied', false, 'job_id', q.job_id, 'round', q.round,
            'index', q.step_index, 'status', s.status, 'job_status', j.status);
    END IF;
    SELECT * INTO a FROM json_to_record(p_answer) AS r (
        status text, content text, reason text, answered_by text, channel text, key text, key_id uuid, is_operator boolean,
        sealed text, sealed_key text
    );
    IF NOT (p_due OR coalesce(a.is_operator, false) OR planq_may_answer(q, a.answered_by)) THEN
        RETURN json_build_object('found', true, 'applied', false, 'asked_of', q.asked_of, 'job_id', q.job_id, 'round', q.round,
            'index', q.step_index, 'status', s.status, 'job_status', j.status);
    END IF;
    IF q.is_secret AND a.status IN ('accepted', 'expired') AND (a.content IS NOT NULL AND a.sealed IS NULL) THEN
        RAISE EXCEPTION 'the answer to question % is secret and has to come sealed', p_id;
    END IF;
    INSERT INTO tenant_secrets (tenant_id, name, key_id, sealed, created_at, updated_at)
    SELECT p_tenant, planq_sealed_as(p_id), a.sealed_key, decode(a.sealed, 'base64'), planq_now(), planq_now()
    WHERE a.sealed IS NOT NULL;
    UPDATE questions SET status = a.status, content = a.content::json, reason = a.reason, answered_by = a.answered_by,
        channel = a.channel, answered_key = a.key, answered_key_id = a.key_id, answered_at = planq_clock()
    WHERE id = p_id;
    IF q.waiting_since IS NULL THEN
        PERFORM planq_append_event(j.tenant_id, q.job_id, 'answered_ahead', json_build_object(
            'round', q.round, 'index', q.step_index, 'elicitation', p_id, 'kind', q.kind, 'status', a.status,
            'channel', a.channel));
        RETURN json_build_object('found', true, 'applied', true, 'job_id', q.job_id, 'round', q.round,
            'index', q.step_index, 'status', s.status, 'job_status', j.status, 'stage_attempt', j.stage_attempt,
            'ready', '[]'::json, 'priority', j.priority, 'agent', j.agent_name, 'root', coalesce(j.root_job_id, j.id),
        'tenant', j.tenant_id);
    END IF;
    UPDATE steps SET status = 'running', question_id = NULL, wake_at = NULL, in_doubt = false, deadline = planq_now()
    WHERE job_id = q.job_id AND index = q.step_index;
    UPDATE jobs SET open_questions = open_questions - 1, out_steps = out_steps + 1 WHERE id = q.job_id;
    -- While the job is paused the wait stands still, and resuming moves the deadlines by the whole pause.
    PERFORM planq_shift_lineage(q.job_id, -greatest(s.wake_at - coalesce(j.paused_at, planq_now()), interval '0'));
    PERFORM planq_append_event(j.tenant_id, q.job_id, 'step_settled', json_build_object(
        'round', q.round, 'index', q.step_index, 'elicitation', p_id, 'kind', q.kind, 'status', a.status,
        'channel', a.channel));
    i.job := q.job_id;
    i.round := q.round;
    i.index := q.step_index;
    i.attempt := s.attempt;
    v_result := CASE WHEN p_again THEN planq_hand_back_step(i.job, i.round, i.index, i.attempt, NULL)
                     ELSE planq_finish_step(i) END;
    RETURN json_build_object('found', true, 'applied', true, 'job_id', q.job_id, 'round', q.round, 'index', q.step_index,
        'status', v_result->'status', 'job_status', v_result->'job_status', 'stage_attempt', j.stage_attempt,
        'ready', v_result->'ready', 'priority', j.priority, 'agent', j.agent_name, 'root', coalesce(j.root_job_id, j.id),
        'tenant', j.tenant_id);
END $$;

-- Whether a question is asked of a person. Who holds a key and names no person speaks for the asker, not for one of several.
CREATE FUNCTION planq_may_answer(q questions, p_person text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE q.asked_of
        WHEN 'anyone' THEN true
        WHEN 'asker' THEN p_person IS NULL OR p_person = ANY (q.asked_ids)
        WHEN 'ids' THEN coalesce(p_person = ANY (q.asked_ids), false)
        ELSE false END
$$;

-- Ends what jobs wait for whose steps are about to be cut off. Open questions are closed, and the rest of their waits is taken back from
-- the jobs above. Jobs above that were not paused with one of these get the time of its pause. What open calls may have cost stays
-- held until a worker must have recorded it. The caller holds the jobs and all jobs above.
CREATE FUNCTION planq_end_waits(p_jobs uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    w record;
BEGIN
    -- With the running steps locked, what they are just reserving is stored before this looks.
    PERFORM FROM steps s WHERE s.job_id = ANY (p_jobs) AND s.status = ANY (planq_step_running())
      AND EXISTS (SELECT FROM jobs j WHERE j.id = s.job_id AND j.budget IS NOT NULL)
    ORDER BY s.job_id, s.round, s.index FOR NO KEY UPDATE OF s;
    -- Within its lease a worker notices that the job was cut off. Without workers nobody is left who could record a call.
    UPDATE budget_holds q SET owed_until = planq_now() + (SELECT make_interval(secs => max(lease_seconds)) FROM workers)
    WHERE q.job_id = ANY (p_jobs) AND planq_is_held(q);
    FOR w IN
        UPDATE questions q SET status = 'cancelled', answered_at = planq_clock()
        FROM jobs j, steps s
        WHERE q.job_id = ANY (p_jobs) AND q.status = 'open' AND j.id = q.job_id AND s.job_id = q.job_id AND s.index = q.step_index
        RETURNING q.job_id, CASE WHEN q.waiting_since IS NULL THEN interval '0'
                                 ELSE greatest(s.wake_at - coalesce(j.paused_at, planq_now()), interval '0') END AS rest
    LOOP
        PERFORM planq_shift_lineage(w.job_id, -w.rest);
    END LOOP;
    PERFORM planq_credit_pause(id) FROM jobs WHERE id = ANY (p_jobs) AND paused_at IS NOT NULL;
END $$;

-- A job's pause ends: the jobs above that were not paused with it get that time. The caller holds their rows.
CREATE FUNCTION planq_credit_pause(p_job uuid) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_paused timestamptz;
BEGIN
    SELECT j.paused_at INTO v_paused FROM jobs j JOIN jobs p ON p.id = j.parent_job_id
    WHERE j.id = p_job AND p.paused_at IS DISTINCT FROM j.paused_at;
    IF FOUND THEN
        UPDATE jobs SET deadline = deadline + greatest(coalesce(paused_at, planq_now()) - v_paused, interval '0'),
            expires_at = expires_at + greatest(coalesce(paused_at, planq_now()) - v_paused, interval '0')
        WHERE id = ANY (planq_lineage(p_job)) AND id <> p_job
          AND planq_is_unfinished(status);
    END IF;
END $$;

-- Whether something below a job is paused: then its time stands still, too.
CREATE FUNCTION planq_is_held_below(p_job uuid) RETURNS boolean LANGUAGE sql STABLE AS $$
    WITH RECURSIVE tree (id, paused_at) AS (
        SELECT c.id, c.paused_at FROM jobs c
        WHERE c.parent_job_id = p_job AND planq_is_unfinished(c.status)
        UNION ALL
        SELECT c.id, c.paused_at FROM tree t CROSS JOIN LATERAL (
            SELECT j.id, j.paused_at FROM jobs j WHERE j.parent_job_id = t.id AND planq_is_unfinished(j.status) OFFSET 0
        ) c
    )
    SELECT EXISTS (SELECT FROM tree WHERE paused_at IS NOT NULL)
$$;

-- The ids of a job and of all jobs above it.
CREATE FUNCTION planq_lineage(p_job uuid) RETURNS uuid[] LANGUAGE sql STABLE AS $$
    WITH RECURSIVE lineage (id, parent) AS (
        SELECT id, parent_job_id FROM jobs WHERE id = p_job
        UNION ALL
        SELECT j.id, j.parent_job_id FROM lineage l JOIN jobs j ON j.id = l.parent
    )
    SELECT array_agg(id) FROM lineage
$$;

-- Locks the rows of jobs and of all jobs above them in the order of their ids, which is from the outermost down.
CREATE FUNCTION planq_lock_lineages(p_jobs uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM jobs WHERE id = ANY (ARRAY(SELECT unnest(planq_lineage(g.id)) FROM unnest(p_jobs) AS g (id)))
    ORDER BY id FOR NO KEY UPDATE;
END $$;

-- Moves the deadlines of a job and of all jobs above it; whose row is held by the caller.
CREATE FUNCTION planq_shift_lineage(p_job uuid, p_by interval) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE jobs SET deadline = deadline + p_by, expires_at = expires_at + p_by
    WHERE id = ANY (planq_lineage(p_job))
      AND planq_is_unfinished(status);
END $$;
