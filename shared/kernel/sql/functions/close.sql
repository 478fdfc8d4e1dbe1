-- Close: steps that have ended are counted off their job; with the last one its round is over.
--
-- planq_close_steps       counts them off
--   planq_end_round         the last one opens the stage after the round
--   planq_end_with_steps    or ends the job, where no stage follows

-- Counts `p_closed` steps off a job, of which `p_failed` have failed; `p_out` and `p_held` more of the others are out and held.
-- A failure that is only recorded is none of the job's. Returns the job's status. The caller holds the job's row, and has told of
-- the steps.
CREATE FUNCTION planq_close_steps(p_job uuid, p_closed int, p_failed int, p_out int, p_held int) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    j record;
    e planq_round_end;
BEGIN
    SELECT open_steps, status, CASE on_failure WHEN 'record' THEN 0 ELSE p_failed END AS failed INTO j FROM jobs WHERE id = p_job;
    IF j.open_steps <> p_closed THEN
        UPDATE jobs SET open_steps = open_steps - p_closed, failed_steps = failed_steps + j.failed,
            out_steps = out_steps + p_out, held_steps = held_steps + p_held
        WHERE id = p_job;
        RETURN j.status;
    END IF;
    e := planq_end_round(p_job, p_closed, j.failed, NULL, NULL, NULL);
    PERFORM planq_append_events(e.events);
    RETURN e.status;
END $$;

-- The last `p_closed` steps of a round have ended, `p_failed` of them in failures of the job. Opens the stage after it, or
-- ends the job where none follows: nobody is asked for an answer, or the job fails with a step that has failed. `p_worker`,
-- which has the rounds `p_cached`, takes that stage over for up to `p_seconds`; null: nobody does. The caller holds the
-- job's row, and stores the events after those of the steps.
CREATE FUNCTION planq_end_round(
    p_job uuid, p_closed int, p_failed int, p_worker uuid, p_seconds float8, p_cached planq_cached
) RETURNS planq_round_end LANGUAGE plpgsql AS $$
DECLARE
    j record;
    v_end planq_event;
    v_stage planq_stage;
BEGIN
    UPDATE jobs SET
        status = after_steps, round = round + (after_steps = 'planning')::int, open_steps = open_steps - p_closed,
        failed_steps = failed_steps + p_failed, open_questions = 0, places = NULL, out_steps = NULL, held_steps = 0,
        stage_losses = CASE after_steps WHEN 'planning' THEN 0 ELSE stage_losses END,
        rounds_deadline = CASE after_steps WHEN 'planning' THEN deadline END,
        stage_worker = p_worker, stage_attempt = stage_attempt + (p_worker IS NOT NULL)::int, wakes = 0,
        wake_at = CASE WHEN p_worker IS NULL THEN planq_now() + planq_wake_grace() END,
        deadline = CASE WHEN p_worker IS NOT NULL THEN planq_now() + make_interval(secs => p_seconds) END
    WHERE id = p_job AND status = 'executing' AND after_steps <> 'completed'
      AND NOT (on_failure = 'fail' AND failed_steps + p_failed > 0)
    RETURNING tenant_id, status, stage_attempt INTO j;
    IF NOT FOUND THEN
        v_end := planq_end_with_steps(p_job, p_failed);
        RETURN ROW(planq_status_told(v_end), NULL, ARRAY[v_end])::planq_round_end;
    END IF;
    IF p_worker IS NULL THEN
        RETURN ROW(j.status, NULL, '{}')::planq_round_end;
    END IF;
    v_stage := planq_stage_taken(p_job, j.tenant_id, j.status, j.stage_attempt, p_cached);
    RETURN ROW(j.status, v_stage, ARRAY[v_stage.event])::planq_round_end;
END $$;

-- JobEnded, with the last step of its round: it has failed, or answers as it was asked to. `p_failed` of its steps have failed
-- just now. Who waits hears of it with the commit, over the channel `planq_ended`. Returns the event, for the caller to store
-- after those of the steps. The caller holds the job's row, whose steps have all ended.
CREATE FUNCTION planq_end_with_steps(p_job uuid, p_failed int) RETURNS planq_event LANGUAGE plpgsql AS $$
DECLARE
    j record;
    s record;
    v_status text := 'completed';
    v_error json;
    v_output json;
    v_answer text;
    v_preview text;
BEGIN
    SELECT tenant_id, round, respond, on_failure, failed_steps + p_failed AS failed_steps INTO j FROM jobs WHERE id = p_job;
    IF j.failed_steps > 0 THEN
        v_error := planq_first_failure(p_job);
        v_status := CASE j.on_failure WHEN 'fail' THEN 'failed' ELSE v_status END;
    END IF;
    IF v_status = 'completed' AND j.respond = 'output' THEN
        SELECT o.status, o.output, o.payload_hash, p.preview INTO s
        FROM steps o LEFT JOIN payloads p ON p.tenant_id = o.tenant_id AND p.hash = o.payload_hash
        WHERE o.job_id = p_job AND o.round = j.round ORDER BY o.index DESC LIMIT 1;
        IF s.status = 'succeeded' THEN
            v_output := s.output;
            IF s.payload_hash IS NULL THEN
                v_answer := planq_output_text(s.output);
            ELSE
                v_preview := planq_preview_text(s.preview);
            END IF;
        END IF;
    END IF;
    UPDATE jobs SET
        status = v_status, error = v_error, output = v_output, answer = v_answer, preview = v_preview, failed_steps = j.failed_steps,
        open_steps = 0, open_questions = 0, places = NULL, out_steps = NULL, held_steps = 0, deadline = NULL,
        wake_at = NULL, wakes = 0, paused_at = NULL, finished_at = planq_clock()
    WHERE id = p_job AND status = 'executing';
    ASSERT FOUND, 'ended_twice';
    PERFORM pg_notify('planq_ended', p_job::text);
    RETURN ROW(j.tenant_id, p_job, 'job_' || v_status, planq_end_told(v_status, v_error))::planq_event;
END $$;

-- The status of a job that an event tells the end of.
CREATE FUNCTION planq_status_told(p_end planq_event) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT substr(p_end.kind, length('job_') + 1)
$$;
