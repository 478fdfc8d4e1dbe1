-- Claims in release 0003: what a claim brings, and claims of several at once. A claim is a compare-and-set; the same
-- happens in a transition that takes over what it has made ready (0003_take.sql).
-- Functions of the hot path are planned once a session, rows found by their primary key: what the tables looked like at
-- that moment must not matter. That is why conditions on `status` stand apart, where no partial index is taken for them.

-- The outcomes of the steps of one round that were begun and have ended, in plan order; of large outputs the preview.
-- How long a person took to answer is not the tool's time.
CREATE FUNCTION planq_results(p_job uuid, p_round int) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT coalesce(json_agg(json_build_object(
        'index', s.index, 'tool_name', s.tool_name, 'status', s.status, 'attempt', s.attempt,
        'arguments', s.arguments, 'inputs', s.inputs, 'output', s.output,
        'payload_hash', encode(s.payload_hash, 'hex'), 'output_bytes', s.output_bytes, 'excerpts', s.excerpts,
        'preview', p.preview, 'error', s.error,
        'seconds', extract(epoch FROM coalesce(s.asked_at, s.finished_at) - s.started_at)::float8
    ) ORDER BY s.index), '[]')
    FROM steps s LEFT JOIN payloads p ON p.tenant_id = s.tenant_id AND p.hash = s.payload_hash
    WHERE s.job_id = p_job AND s.round = p_round AND s.status IN ('succeeded', 'failed')
$$;

-- What whoever has claimed a step needs to know: with the outputs that it references, of large ones what is known.
CREATE VIEW planq_step_claims AS
SELECT s.job_id, s.round, s.index, json_build_object(
    'job_id', s.job_id, 'round', s.round, 'index', s.index, 'tenant_id', s.tenant_id, 'tool_name', s.tool_name,
    'effect', s.effect, 'lane', s.lane, 'arguments', s.arguments, 'attempt', s.attempt, 'retries', s.retries,
    'recovery', s.recovery, 'unsure', s.unsure, 'wanted', s.wanted, 'worker_losses', s.worker_losses,
    'releases', s.releases, 'timeout_seconds', s.timeout_seconds, 'user_id', j.user_id, 'trace_id', j.trace_id,
    'conversation_id', j.conversation_id, 'time_left', extract(epoch FROM j.deadline - now())::float8,
    'outputs', CASE WHEN s.inputs <> '{}' THEN (
        SELECT json_object_agg(i.index, json_build_object(
            'output', i.output, 'payload_hash', encode(i.payload_hash, 'hex'),
            'output_bytes', i.output_bytes, 'excerpts', i.excerpts))
        FROM steps i WHERE i.job_id = s.job_id AND i.round = s.round AND i.index = ANY (s.inputs)) END
) AS claim
FROM steps s JOIN jobs j ON j.id = s.job_id;

-- What whoever has claimed a stage needs to know: PLAN the plan that the caller sent, RESPOND what came of the plan.
CREATE VIEW planq_stage_claims AS
SELECT j.id AS job_id, json_build_object(
    'job_id', j.id, 'tenant_id', j.tenant_id, 'status', j.status, 'round', j.round, 'attempt', j.stage_attempt,
    'model', j.model, 'input', j.input, 'tools', j.tools, 'limits', j.limits, 'forked_from', j.forked_from,
    'plan_source', p.source, 'plan_errors', p.errors, 'plan_reuse', p.reuse,
    'plan_body', CASE WHEN j.status = 'planning' THEN p.body END,
    'results', CASE WHEN j.status = 'responding' AND p.errors IS NULL THEN planq_results(j.id, j.round) END
) AS claim
FROM jobs j LEFT JOIN plans p ON p.job_id = j.id AND p.round = j.round;

-- StageClaimed: takes PLAN or RESPOND stages, those that are neither taken nor over. `p_items` lists {n, job, statuses};
-- the deadline is for a worker that lives but has lost the claim, because the answer to this very call got lost, say.
-- Returns rows (n, claim) of those that were claimed.
CREATE FUNCTION planq_claim_stages(p_items json, p_worker uuid, p_seconds float8) RETURNS TABLE (n int, claim json)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_ids uuid[];
    v_taken int[];
BEGIN
    WITH item AS MATERIALIZED (
        SELECT * FROM json_to_recordset(p_items) AS i (n int, job uuid, statuses text[])
    ), held AS MATERIALIZED (
        SELECT j.id, j.status, j.stage_worker IS NULL AND j.run_at <= now() AND j.paused_at IS NULL AS is_free
        FROM jobs j WHERE j.id IN (SELECT item.job FROM item) ORDER BY j.id FOR NO KEY UPDATE
    ), claimed AS (
        UPDATE jobs j SET
            status = CASE j.status WHEN 'queued' THEN 'planning' ELSE j.status END,
            stage_worker = p_worker,
            stage_attempt = j.stage_attempt + 1,
            started_at = coalesce(j.started_at, clock_timestamp()),
            -- The time in the queue is over; from here on the whole life counts.
            expires_at = CASE WHEN j.started_at IS NULL AND j.resumes = 0
                THEN j.expires_at + make_interval(secs => greatest(0, (j.limits->>'job_timeout_seconds')::float8
                                                                      - (j.limits->>'queue_timeout_seconds')::float8))
                ELSE j.expires_at END,
            deadline = now() + make_interval(secs => p_seconds),
            wake_at = NULL,
            wakes = 0
        FROM held h JOIN item ON item.job = h.id AND h.is_free AND h.status = ANY (item.statuses)
        WHERE j.id = h.id
        RETURNING item.n, j.id, j.tenant_id, j.status, j.stage_attempt
    ), told AS (
        INSERT INTO events (tenant_id, job_id, kind, data)
        SELECT c.tenant_id, c.id, 'stage_started', json_build_object('stage', c.status, 'attempt', c.stage_attempt)
        FROM claimed c
    )
    SELECT array_agg(c.id), array_agg(c.n) INTO v_ids, v_taken FROM claimed c;
    RETURN QUERY SELECT t.n, c.claim
        FROM unnest(v_taken, v_ids) AS t (n, id) JOIN planq_stage_claims c ON c.job_id = t.id;
END $$;

-- StepsClaimed: takes those of a round's steps `p_indices` that are ready and whose time has come, passing over what
-- somebody else is just moving: so two of these, or one and a transition of the whole job, never wait for each other.
-- Returns rows (claim) in plan order.
CREATE FUNCTION planq_claim_steps(p_job uuid, p_round int, p_indices int[], p_worker uuid) RETURNS TABLE (claim json)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_ready CONSTANT text := 'ready';
    v_taken int[];
BEGIN
    WITH free AS MATERIALIZED (
        SELECT s.index FROM steps s JOIN jobs j ON j.id = s.job_id
        WHERE s.job_id = p_job AND s.round = p_round AND s.index = ANY (p_indices) AND s.status = v_ready
          AND s.run_at <= now() AND j.status IN ('executing', 'input_required') AND j.paused_at IS NULL
        FOR NO KEY UPDATE OF s SKIP LOCKED
    ), claimed AS (
        UPDATE steps s SET
            status = 'running', attempt = s.attempt + 1, worker_id = p_worker,
            started_at = coalesce(s.started_at, clock_timestamp()),
            deadline = now() + make_interval(secs => s.timeout_seconds), wake_at = NULL, wakes = 0
        FROM free WHERE s.job_id = p_job AND s.round = p_round AND s.index = free.index
        RETURNING s.tenant_id, s.index, s.attempt, s.tool_name
    ), told AS (
        INSERT INTO events (tenant_id, job_id, kind, data)
        SELECT c.tenant_id, p_job, 'step_started', json_build_object(
            'round', p_round, 'index', c.index, 'attempt', c.attempt, 'tool_name', c.tool_name)
        FROM claimed c ORDER BY c.index
    )
    SELECT array_agg(c.index) INTO v_taken FROM claimed c;
    RETURN QUERY SELECT c.claim FROM planq_step_claims c
        WHERE c.job_id = p_job AND c.round = p_round AND c.index = ANY (v_taken) ORDER BY c.index;
END $$;
