-- Close: steps that have ended are counted off their jobs; with the last one of a job its round is over.
--
-- planq_close_steps       counts them off; the last one opens the stage after the round
--   planq_end_with_steps    or ends the job, where no stage follows

-- Counts steps off jobs, of which some have failed. A failure that is only recorded is none of the job's. With the last one the
-- stage after the round opens, or the job ends where none follows: nobody is asked for an answer, or the job fails with a step that
-- has failed. `p_worker` takes stages over for up to `p_seconds`. Each job is named once. The caller holds the jobs' rows, has told of
-- the steps, and knows that a job whose stage is taken is neither paused nor waits.
CREATE FUNCTION planq_close_steps(p_closings planq_closing[], p_worker uuid, p_seconds float8) RETURNS SETOF planq_closed
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_closed planq_closed[];
    v_counted planq_closed[];
    v_numbers int[];
    v_stages uuid[];
    v_cached planq_cached[];
BEGIN
    WITH closed AS (
        UPDATE jobs j SET
            status = j.after_steps, round = j.round + (j.after_steps = 'planning')::int, open_steps = 0,
            failed_steps = j.failed_steps + CASE j.on_failure WHEN 'record' THEN 0 ELSE c.failed END,
            open_questions = 0, places = NULL, out_steps = NULL, held_steps = 0,
            stage_losses = CASE j.after_steps WHEN 'planning' THEN 0 ELSE j.stage_losses END,
            rounds_deadline = CASE j.after_steps WHEN 'planning' THEN j.deadline END,
            stage_worker = CASE WHEN c.takes_stage THEN p_worker END,
            stage_attempt = j.stage_attempt + c.takes_stage::int, wakes = 0,
            wake_at = CASE WHEN NOT c.takes_stage THEN planq_now() + planq_wake_grace() END,
            deadline = CASE WHEN c.takes_stage THEN planq_now() + make_interval(secs => p_seconds) END
        FROM unnest(p_closings) c
        WHERE c.n BETWEEN 0 AND 9999 AND j.id = c.job AND j.open_steps = c.closed AND j.after_steps <> 'completed'
          AND NOT (j.on_failure = 'fail' AND j.failed_steps + c.failed > 0)
        RETURNING c.n, c.takes_stage, c.cached, j.id, j.tenant_id, j.status, j.stage_attempt
    ), told AS (
        INSERT INTO events (tenant_id, job_id, kind, data)
        SELECT tenant_id, id, 'stage_started', planq_stage_told(status, stage_attempt) FROM closed WHERE takes_stage
    )
    SELECT array_agg(ROW(n, id, status, NULL, NULL)::planq_closed) FILTER (WHERE NOT takes_stage),
        array_agg(n) FILTER (WHERE takes_stage), array_agg(id) FILTER (WHERE takes_stage),
        array_agg(cached) FILTER (WHERE takes_stage)
    INTO v_closed, v_numbers, v_stages, v_cached FROM closed;
    IF v_numbers IS NOT NULL THEN
        RETURN QUERY SELECT t.n, v_stages[array_position(v_numbers, t.n)], t.status, t.claim, t.attempt
        FROM planq_stage_claims(v_numbers, v_stages, v_cached) t;
    END IF;
    IF coalesce(cardinality(v_closed), 0) + coalesce(cardinality(v_numbers), 0) < cardinality(p_closings) THEN
        WITH counted AS (
            UPDATE jobs j SET open_steps = j.open_steps - c.closed,
                failed_steps = j.failed_steps + CASE j.on_failure WHEN 'record' THEN 0 ELSE c.failed END,
                out_steps = j.out_steps + c."out", held_steps = j.held_steps + c.held
            FROM unnest(p_closings) c
            WHERE c.n BETWEEN 0 AND 9999 AND j.id = c.job AND j.status = 'executing' AND j.open_steps <> c.closed
            RETURNING c.n, j.id, j.status
        )
        SELECT array_agg(ROW(n, id, status, NULL, NULL)::planq_closed) INTO v_counted FROM counted;
        v_closed := v_closed || v_counted;
        RETURN QUERY SELECT c.n, c.job, planq_end_with_steps(c.job, c.failed), NULL::json, NULL::int FROM unnest(p_closings) c
        WHERE c.job <> ALL (coalesce(v_stages, '{}')) AND c.job NOT IN (SELECT d.job FROM unnest(v_closed) d) ORDER BY c.job;
    END IF;
    RETURN QUERY SELECT * FROM unnest(v_closed);
END $$;

-- JobEnded, with the last step of its round: it has failed, or answers as it was asked to. `p_failed` of its steps have failed
-- just now. Who waits hears of it with the commit, over the channel `planq_ended`. Returns the status. The caller holds the job's
-- row, whose steps have all ended, and has told of them.
CREATE FUNCTION planq_end_with_steps(p_job uuid, p_failed int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j record;
    s record;
    v_status text := 'completed';
    v_error json;
    v_output json;
    v_answer text;
    v_preview text;
BEGIN
    SELECT tenant_id, round, respond, on_failure,
        failed_steps + CASE on_failure WHEN 'record' THEN 0 ELSE p_failed END AS failed_steps INTO j FROM jobs WHERE id = p_job;
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
    PERFORM planq_append_event(j.tenant_id, p_job, 'job_' || v_status, planq_end_told(v_status, v_error));
    RETURN v_status;
END $$;
