-- Claims in release 0003: what a claim brings, and claims of several at once. A claim is a compare-and-set; the same
-- happens in a transition that takes over what it has made ready (0003_take.sql).
-- Functions of the hot path are planned once a session, and find rows by their primary key: what the tables looked like
-- at that moment must not matter. So they compare `status` with variables, for which no partial index can be taken. They
-- move one row after the other: a statement for a single row costs a fraction of one that joins, even for ten rows.

-- The outcomes of the steps of one round that were begun and have ended, in plan order; of large outputs the preview.
-- How long a person took to answer is not the tool's time.
CREATE FUNCTION planq_results(p_job uuid, p_round int) RETURNS json LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
BEGIN
    RETURN (SELECT coalesce(json_agg(json_build_object(
        'index', s.index, 'tool_name', s.tool_name, 'status', s.status, 'attempt', s.attempt,
        'arguments', s.arguments, 'inputs', s.inputs, 'output', s.output,
        'payload_hash', encode(s.payload_hash, 'hex'), 'output_bytes', s.output_bytes, 'excerpts', s.excerpts,
        'preview', p.preview, 'error', s.error,
        'seconds', extract(epoch FROM coalesce(s.asked_at, s.finished_at) - s.started_at)::float8
    ) ORDER BY s.index), '[]')
    FROM steps s LEFT JOIN payloads p ON p.tenant_id = s.tenant_id AND p.hash = s.payload_hash
    WHERE s.job_id = p_job AND s.round = p_round AND s.status IN ('succeeded', 'failed'));
END $$;

-- What whoever has claimed a step needs to know: with the outputs that it references, of large ones what is known.
CREATE FUNCTION planq_step_claim(s steps) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    j record;
    v_outputs json;
BEGIN
    SELECT user_id, trace_id, conversation_id, extract(epoch FROM deadline - now())::float8 AS time_left
    INTO j FROM jobs WHERE id = s.job_id;
    IF s.inputs <> '{}' THEN
        SELECT json_object_agg(i.index, json_build_object(
            'output', i.output, 'payload_hash', encode(i.payload_hash, 'hex'),
            'output_bytes', i.output_bytes, 'excerpts', i.excerpts))
        INTO v_outputs FROM steps i WHERE i.job_id = s.job_id AND i.round = s.round AND i.index = ANY (s.inputs);
    END IF;
    RETURN json_build_object(
        'job_id', s.job_id, 'round', s.round, 'index', s.index, 'tenant_id', s.tenant_id, 'tool_name', s.tool_name,
        'effect', s.effect, 'lane', s.lane, 'arguments', s.arguments, 'attempt', s.attempt, 'retries', s.retries,
        'recovery', s.recovery, 'unsure', s.unsure, 'wanted', s.wanted, 'worker_losses', s.worker_losses,
        'releases', s.releases, 'timeout_seconds', s.timeout_seconds, 'user_id', j.user_id, 'trace_id', j.trace_id,
        'conversation_id', j.conversation_id, 'time_left', j.time_left, 'outputs', v_outputs);
END $$;

-- What whoever has claimed a stage needs to know: PLAN the plan that the caller sent, RESPOND what came of the plan.
CREATE FUNCTION planq_stage_claim(p_job uuid) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    j record;
    p record;
BEGIN
    SELECT tenant_id, status, round, stage_attempt, model, input, tools, limits, forked_from INTO j
    FROM jobs WHERE id = p_job;
    SELECT source, errors, reuse, CASE WHEN j.status = 'planning' THEN body END AS body INTO p
    FROM plans WHERE job_id = p_job AND round = j.round;
    RETURN json_build_object(
        'job_id', p_job, 'tenant_id', j.tenant_id, 'status', j.status, 'round', j.round, 'attempt', j.stage_attempt,
        'model', j.model, 'input', j.input, 'tools', j.tools, 'limits', j.limits, 'forked_from', j.forked_from,
        'plan_source', p.source, 'plan_errors', p.errors, 'plan_reuse', p.reuse, 'plan_body', p.body,
        'results', CASE WHEN j.status = 'responding' AND p.errors IS NULL THEN planq_results(p_job, j.round) END);
END $$;

-- Events that gather while a function runs, so that one statement stores them.
CREATE TYPE planq_event AS (tenant text, job uuid, kind text, data json);

CREATE FUNCTION planq_tell_all(p_events planq_event[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (tenant_id, job_id, kind, data) SELECT e.tenant, e.job, e.kind, e.data FROM unnest(p_events) e;
END $$;

CREATE FUNCTION planq_step_started(s steps) RETURNS planq_event LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ROW(s.tenant_id, s.job_id, 'step_started', json_build_object(
        'round', s.round, 'index', s.index, 'attempt', s.attempt, 'tool_name', s.tool_name))::planq_event;
END $$;

-- StageClaimed: takes PLAN or RESPOND stages, those that are neither taken nor over. `p_items` lists {n, job, statuses}
-- in the order of the jobs' ids; the deadline is for a worker that lives but has lost the claim, because the answer to
-- this very call got lost, say. Returns rows (n, claim) of those that were claimed.
CREATE FUNCTION planq_claim_stages(p_items json, p_worker uuid, p_seconds float8) RETURNS TABLE (n int, claim json)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    i record;
    j record;
    v_events planq_event[];
BEGIN
    FOR i IN SELECT * FROM json_to_recordset(p_items) AS c (n int, job uuid, statuses text[]) LOOP
        UPDATE jobs SET
            status = CASE status WHEN 'queued' THEN 'planning' ELSE status END,
            stage_worker = p_worker,
            stage_attempt = stage_attempt + 1,
            started_at = coalesce(started_at, clock_timestamp()),
            -- The time in the queue is over; from here on the whole life counts.
            expires_at = CASE WHEN started_at IS NULL AND resumes = 0
                THEN expires_at + make_interval(secs => greatest(0, (limits->>'job_timeout_seconds')::float8
                                                                    - (limits->>'queue_timeout_seconds')::float8))
                ELSE expires_at END,
            deadline = now() + make_interval(secs => p_seconds),
            wake_at = NULL,
            wakes = 0
        WHERE id = i.job AND stage_worker IS NULL AND run_at <= now() AND paused_at IS NULL
          AND status = ANY (i.statuses)
        RETURNING tenant_id, status, stage_attempt INTO j;
        IF FOUND THEN
            v_events := v_events || ROW(j.tenant_id, i.job, 'stage_started', json_build_object(
                'stage', j.status, 'attempt', j.stage_attempt))::planq_event;
            n := i.n;
            claim := planq_stage_claim(i.job);
            RETURN NEXT;
        END IF;
    END LOOP;
    PERFORM planq_tell_all(v_events);
END $$;

-- StepsClaimed: takes those of a round's steps `p_indices` that are ready and whose time has come. Of several, those
-- that somebody else is just moving are passed over: so two of these, or one and a transition of the whole job, never
-- wait for each other in a circle. Returns rows (claim) in plan order.
CREATE FUNCTION planq_claim_steps(p_job uuid, p_round int, p_indices int[], p_worker uuid) RETURNS TABLE (claim json)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_ready CONSTANT text := 'ready';
    v_executing CONSTANT text[] := '{executing,input_required}';
    v_free int[] := p_indices;
    v_index int;
    s steps;
    v_events planq_event[];
BEGIN
    PERFORM FROM jobs WHERE id = p_job AND status = ANY (v_executing) AND paused_at IS NULL;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF cardinality(p_indices) > 1 THEN
        SELECT coalesce(array_agg(f.index ORDER BY f.index), '{}') INTO v_free FROM (
            SELECT index FROM steps WHERE job_id = p_job AND round = p_round AND index = ANY (p_indices)
              AND status = v_ready AND run_at <= now()
            FOR NO KEY UPDATE SKIP LOCKED
        ) f;
    END IF;
    FOREACH v_index IN ARRAY v_free LOOP
        UPDATE steps SET status = 'running', attempt = attempt + 1, worker_id = p_worker,
            started_at = coalesce(started_at, clock_timestamp()),
            deadline = now() + make_interval(secs => timeout_seconds), wake_at = NULL, wakes = 0
        WHERE job_id = p_job AND round = p_round AND index = v_index AND status = v_ready AND run_at <= now()
        RETURNING * INTO s;
        IF FOUND THEN
            v_events := v_events || planq_step_started(s);
            claim := planq_step_claim(s);
            RETURN NEXT;
        END IF;
    END LOOP;
    PERFORM planq_tell_all(v_events);
END $$;
