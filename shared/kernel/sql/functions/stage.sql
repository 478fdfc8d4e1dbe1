-- Stage: what becomes of a stage that was claimed, other than a plan.
--
-- planq_end_jobs        the answer, or a failure: the job ends
-- planq_retry_stage     the model failed, or the end was refused: the stage waits, and is tried again
-- planq_wake_awaiting   a model answers again: stages that wait for their turn at its circuit are due
-- planq_release_stage   the stage is given back, or taken from a lost worker
-- planq_warn            appends a warning about the stage
-- planq_record_calls    stores the model calls of a stage, once each, and adds them up (planq_with_spent)
--   planq_insert_calls    the same for a transition that adds them up itself

-- AnswerGiven, StageFailed, many times: nothing stays paused or asked. A job that has completed keeps the error of the first
-- step that failed for good. Items: {n, job, attempt, status, answer, error,
-- calls, has_rounds} and `spent` as in planq_accept_plans; a job of an agent has {output, chained, messages} too, where
-- nulls keep what is stored and `messages` lists {kind, call_id, name, content, is_preview}. JSON comes as texts that hold it.
-- `made` lists the files of the calls, for planq_add_made. Returns rows (n) of those that applied; the caller notifies
-- whoever waits for these jobs, after the commit, and records the calls of the others. A `p_worker` that sends this must own the stages.
CREATE FUNCTION planq_end_jobs(p_items json, p_worker uuid) RETURNS TABLE (n int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_stages CONSTANT text[] := '{planning,responding}';
    v_ended int[];
    v_calls planq_called[];
    v_has_more boolean;
BEGIN
    WITH given AS (
        SELECT * FROM json_to_recordset(p_items) AS i (
            n int, job uuid, attempt int, status text, answer text, error text, calls text, spent planq_spent, output text,
            chained text, messages json, made json,
            stop_reason text, has_rounds boolean
        ) WHERE n BETWEEN 0 AND 9999
    ), ended AS (
        UPDATE jobs j SET
            status = i.status, answer = i.answer, stage_worker = NULL, deadline = NULL,
            wake_at = NULL, paused_at = NULL, finished_at = planq_clock(),
            -- An answer that was cut off before its last steps stays so. What failed of a plan is not forgotten for the answer, nor for the chained tool after it. Of further rounds the
            -- planner was told.
            error = CASE WHEN i.error IS NOT NULL THEN i.error::json WHEN j.incomplete IS NOT NULL THEN j.incomplete
                WHEN NOT i.has_rounds AND (j.failed_steps > 0 OR j.round > 0) THEN planq_first_failure(j.id) END,
            output = coalesce(i.output::json, j.output), chained = coalesce(i.chained::json, j.chained),
            stop_reason = coalesce(i.stop_reason, j.stop_reason),
            (model_calls, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd)
                = (SELECT * FROM planq_with_spent(j, i.spent))
        FROM given i
        WHERE j.id = i.job AND j.status = ANY (v_stages) AND j.stage_worker = coalesce(p_worker, j.stage_worker) AND j.stage_attempt = i.attempt
        RETURNING i.n, j.id, j.tenant_id, j.round, j.status, j.error, i.calls, i.messages, i.made
    ), told AS (
        INSERT INTO events (tenant_id, job_id, kind, data)
        SELECT tenant_id, id, 'job_' || status, planq_end_told(status, error) FROM ended
    )
    SELECT array_agg(n), array_agg(ROW(tenant_id, id, round, calls::json)::planq_called) FILTER (WHERE calls IS NOT NULL),
        bool_or(made IS NOT NULL OR messages IS NOT NULL)
    INTO v_ended, v_calls, v_has_more FROM ended;
    IF v_calls IS NOT NULL THEN
        PERFORM planq_insert_calls(v_calls);
    END IF;
    IF v_has_more THEN
        INSERT INTO messages (tenant_id, job_id, kind, call_id, name, content, is_preview)
        SELECT j.tenant_id, i.job, m.kind, m.call_id, m.name, m.content::json, m.is_preview
        FROM json_to_recordset(p_items) AS i (n int, job uuid, messages json)
        CROSS JOIN LATERAL (SELECT tenant_id FROM jobs WHERE id = i.job OFFSET 0) j
        CROSS JOIN LATERAL json_to_recordset(i.messages) AS m (
            kind text, call_id text, name text, content text, is_preview bool)
        WHERE i.n = ANY (v_ended);
        PERFORM planq_add_made(j.tenant_id, i.job, i.made) FROM json_to_recordset(p_items) AS i (n int, job uuid, made json)
        CROSS JOIN LATERAL (SELECT tenant_id FROM jobs WHERE id = i.job OFFSET 0) j
        WHERE i.n = ANY (v_ended) AND i.made IS NOT NULL ORDER BY i.job;
    END IF;
    RETURN QUERY SELECT unnest(v_ended);
END $$;

-- StageRetried: the stage may be claimed again from `p_delay` on, or from the end of the job's time, if that is sooner. What it
-- had come to is `p_kept`, where the end itself was refused: an item of planq_end_jobs as a text that holds JSON.
-- Those of `p_calls` that failed count as one with the call that ends the stage: they are kept, and what they used is
-- added up, but they are no further calls. A call that was not sent (`p_is_sent`) leaves no event.
CREATE FUNCTION planq_retry_stage(
    p_job uuid, p_attempt int, p_error json, p_delay interval, p_tried json, p_calls json, p_kept text, p_is_sent boolean,
    p_worker uuid
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    j record;
    v_retried int;
BEGIN
    UPDATE jobs SET stage_worker = NULL, deadline = NULL, wakes = 0,
        run_at = least(planq_now() + p_delay, expires_at), wake_at = least(planq_now() + p_delay, expires_at),
        stage_retry = json_build_object(
            'stage', status, 'round', round, 'resumes', resumes, 'tried', p_tried, 'error', p_error::text, 'kept', p_kept)
    WHERE id = p_job AND status IN ('planning', 'responding') AND stage_worker = p_worker
      AND stage_attempt = p_attempt
    RETURNING tenant_id, status, run_at INTO j;
    PERFORM planq_record_calls(p_job, p_calls);
    IF j.status IS NULL THEN
        RETURN false;
    END IF;
    UPDATE model_calls SET is_retried = true
    WHERE job_id = p_job AND p_kept IS NULL AND call_id IN (
        SELECT c.id FROM json_to_recordset(p_calls) AS c (id uuid, error text) WHERE c.error IS NOT NULL);
    GET DIAGNOSTICS v_retried = ROW_COUNT;
    UPDATE jobs SET model_calls = model_calls - v_retried WHERE id = p_job;
    IF p_is_sent THEN
        PERFORM planq_append_event(j.tenant_id, p_job, 'stage_retrying', json_build_object(
            'stage', j.status, 'attempt', p_attempt, 'error', p_error, 'next_attempt_at', j.run_at));
    END IF;
    RETURN true;
END $$;

-- StagesWoken: up to `p_limit` stages of a tenant that wait for their turn at one of `p_models` may be claimed within a second.
-- Returns how many.
CREATE FUNCTION planq_wake_awaiting(p_tenant text, p_models text[], p_limit int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_count int;
BEGIN
    WITH due AS MATERIALIZED (
        SELECT j.id, planq_now() + random() * interval '1 second' AS at FROM jobs j
        WHERE j.tenant_id = p_tenant AND j.stage_retry IS NOT NULL AND planq_is_unfinished(j.status)
          AND j.status IN ('planning', 'responding') AND j.stage_worker IS NULL
          AND j.run_at > planq_now() + interval '1 second' AND j.wake_at = j.run_at
          AND EXISTS (SELECT FROM json_array_elements_text(j.stage_retry->'tried'->'awaits') a WHERE a = ANY (p_models))
        ORDER BY j.run_at LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE jobs SET run_at = due.at, wake_at = due.at FROM due WHERE jobs.id = due.id;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- StageReleased: another worker may take the stage. With `p_lost` the loss is counted and the stage is due at once, for the
-- sweeper that found it; a `p_worker` that gives one back owns it, and publishes it itself. Returns whether it applied.
CREATE FUNCTION planq_release_stage(p_job uuid, p_attempt int, p_lost boolean, p_worker uuid) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_tenant text;
BEGIN
    UPDATE jobs SET stage_worker = NULL, deadline = NULL, wakes = 0,
        wake_at = CASE WHEN p_lost THEN planq_now() ELSE planq_now() + planq_wake_grace() END,
        stage_losses = stage_losses + CASE WHEN p_lost THEN 1 ELSE 0 END
    WHERE id = p_job AND status IN ('planning', 'responding') AND stage_worker = coalesce(p_worker, stage_worker)
      AND stage_attempt = p_attempt
    RETURNING tenant_id INTO v_tenant;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM planq_append_event(v_tenant, p_job, 'stage_released', json_build_object('attempt', p_attempt, 'lost', p_lost));
    RETURN true;
END $$;

-- Appends a warning about a stage, once for each kind, as long as the attempt that gives it is the job's.
-- Returns whether it is.
CREATE FUNCTION planq_warn(p_job uuid, p_attempt int, p_kind text, p_data json) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_tenant text;
BEGIN
    SELECT tenant_id INTO v_tenant FROM jobs
    WHERE id = p_job AND stage_attempt = p_attempt AND stage_worker IS NOT NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF NOT EXISTS (SELECT FROM events WHERE job_id = p_job AND kind = p_kind) THEN
        PERFORM planq_append_event(v_tenant, p_job, p_kind, p_data);
    END IF;
    RETURN true;
END $$;

-- Records model calls, also those of a stage whose attempt has expired: what was spent was spent. A call that has an id
-- is recorded once, however often: a repeated commit whose answer was lost names the same ids. The job's row is
-- locked first, so that a repeat waits for what it repeats.
CREATE FUNCTION planq_record_calls(p_job uuid, p_calls json) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    j record;
    t planq_spent;
BEGIN
    IF p_calls IS NULL OR json_array_length(p_calls) = 0 THEN
        RETURN;
    END IF;
    SELECT tenant_id, round INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT count(*), sum(c.input_tokens), sum(c.output_tokens), sum(c.cache_read_tokens), sum(c.cache_write_tokens), sum(c.cost_usd)
    INTO t FROM planq_insert_calls(ARRAY[ROW(j.tenant_id, p_job, j.round, p_calls)::planq_called]) c;
    UPDATE jobs o SET (model_calls, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd)
        = (SELECT * FROM planq_with_spent(o, t))
    WHERE id = p_job AND t.calls > 0;
END $$;

-- The six sums of a job with what model calls have used, null for nothing: its columns from `model_calls` to `cost_usd`.
CREATE FUNCTION planq_with_spent(j jobs, s planq_spent)
RETURNS TABLE (calls int, input bigint, output bigint, read bigint, write bigint, usd numeric) LANGUAGE sql STABLE AS $$
    SELECT j.model_calls + coalesce(s.calls, 0), j.input_tokens + coalesce(s.input, 0), j.output_tokens + coalesce(s.output, 0),
        j.cache_read_tokens + coalesce(s.read, 0), j.cache_write_tokens + coalesce(s.write, 0),
        CASE WHEN s.usd IS NULL THEN j.cost_usd ELSE coalesce(j.cost_usd, 0) + s.usd END
$$;

-- Inserts the model calls that are not recorded yet, and returns what they used; the counters of the jobs are the caller's. `error`
-- and `exchange` arrive as texts that hold JSON: functions that take JSON apart refuse \u0000 and lone surrogates anywhere in
-- it, which the type json itself stores as they are.
CREATE FUNCTION planq_insert_calls(p_calls planq_called[]) RETURNS TABLE (
    input_tokens int, output_tokens int, cache_read_tokens int, cache_write_tokens int, cost_usd numeric
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY INSERT INTO model_calls AS m (
        tenant_id, job_id, round, purpose, model, attempts, latency_ms, input_tokens, output_tokens,
        cache_read_tokens, cache_write_tokens, cost_usd, error, exchange, call_id)
    SELECT g.tenant, g.job, g.round, c.purpose, c.model, c.attempts, c.latency_ms, c.input_tokens, c.output_tokens,
           coalesce(c.cache_read_tokens, 0), coalesce(c.cache_write_tokens, 0), c.cost_usd, c.error::json,
           c.exchange::json, c.id
    FROM unnest(p_calls) g CROSS JOIN LATERAL json_to_recordset(g.calls) AS c (
        id uuid, purpose text, model text, attempts int, latency_ms int, input_tokens int, output_tokens int,
        cache_read_tokens int, cache_write_tokens int, cost_usd numeric, error text, exchange text
    ) WHERE NOT EXISTS (SELECT FROM model_calls o WHERE o.job_id = g.job AND o.call_id = c.id OFFSET 0)
    RETURNING m.input_tokens, m.output_tokens, m.cache_read_tokens, m.cache_write_tokens, m.cost_usd;
END $$;
