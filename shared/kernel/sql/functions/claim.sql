-- Claim: a worker takes a stage or a step by compare-and-set; no row, no work, so a duplicate message is harmless.
--
-- planq_claim_stages   takes PLAN or RESPOND of several jobs; its commit need not reach the disk at once
--   planq_take_stages    the same within another transition
--   planq_stage_claims   what the worker then knows of each stage
-- planq_claim_steps    takes ready steps of one round
--   planq_take_steps     takes steps of several jobs, within another transition
--   planq_step_claims    what the worker then knows of each step
-- planq_take           claims what a transition has just made ready, in the commit of that transition
--
-- Functions of the hot path are planned once a session, when the tables may be all but empty. They must find rows by their ids even
-- then, in the order of the items, so the planner is left no choice: each item has a number `n BETWEEN 0 AND 9999`, which makes it
-- expect one item, and look its row up; or the look-up is a LATERAL query with OFFSET 0. They compare
-- `status` with variables, for which no partial index can be taken, and rely on the settings of planq's sessions
-- (docs/decisions.md, D103). What only rare jobs have is read by functions that are called in a CASE.

-- StageClaimed: takes PLAN or RESPOND stages, those that are neither taken nor over. `p_items` lists {n, job, statuses, cached}
-- in the order of the jobs' ids; the deadline is for a worker that lives but has lost the claim, because the answer to
-- this very call got lost, say. Returns rows (n, claim) of those that were claimed.
CREATE FUNCTION planq_claim_stages(p_items json, p_worker uuid, p_seconds float8) RETURNS TABLE (n int, claim json)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT t.n, t.claim FROM planq_take_stages(p_items, p_worker, p_seconds) t;
    PERFORM planq_flush_later();
END $$;

-- Stages begin their next attempts, in `p_worker`, for up to `p_seconds`: each job is in one of the item's `statuses` (null: in a stage), is not paused,
-- and its time has come. The worker has the rounds `cached`, null for none. Returns those that nobody else has.
CREATE FUNCTION planq_take_stages(p_items json, p_worker uuid, p_seconds float8) RETURNS SETOF planq_taken_stage
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_numbers int[];
    v_jobs uuid[];
    v_cached planq_cached[];
    v_stages CONSTANT text[] := '{planning,responding}';
BEGIN
    WITH given AS (
        SELECT * FROM json_to_recordset(p_items) AS i (n int, job uuid, statuses text[], cached planq_cached)
        WHERE n BETWEEN 0 AND 9999
    ), taken AS (
        UPDATE jobs j SET
            status = CASE j.status WHEN 'queued' THEN 'planning' ELSE j.status END,
            stage_worker = p_worker,
            stage_attempt = j.stage_attempt + 1,
            started_at = coalesce(j.started_at, planq_clock()),
            -- The time in the queue is over; from here on the whole life counts.
            expires_at = CASE WHEN j.started_at IS NULL AND j.resumes = 0
                THEN j.expires_at + make_interval(secs => greatest(0, (j.limits->>'job_timeout_seconds')::float8
                                                                      - (j.limits->>'queue_timeout_seconds')::float8))
                ELSE j.expires_at END,
            deadline = planq_now() + make_interval(secs => p_seconds),
            wake_at = NULL,
            wakes = 0
        FROM given i
        WHERE j.id = i.job AND j.stage_worker IS NULL AND j.run_at <= planq_now() AND j.paused_at IS NULL AND j.status = ANY (coalesce(i.statuses, v_stages))
          AND j.format <= planq_format()
        RETURNING i.n, i.cached, j.id, j.tenant_id, j.status, j.stage_attempt
    ), told AS (
        INSERT INTO events (tenant_id, job_id, kind, data)
        SELECT tenant_id, id, 'stage_started', planq_stage_told(status, stage_attempt) FROM taken
    )
    SELECT array_agg(n), array_agg(id), array_agg(cached) INTO v_numbers, v_jobs, v_cached FROM taken;
    RETURN QUERY SELECT c.n, c.claim, c.attempt FROM planq_stage_claims(v_numbers, v_jobs, v_cached) c;
END $$;

-- The claims of stages, by the names of `StageClaim`: for PLAN the plan that the caller sent, for RESPOND the results of the plan, and
-- the plan itself where neither the caller nor the model made it; for whom the job is, because the first steps may begin
-- before they are stored; the failures of its model that the stage has tried again after, and the time that the job has
-- left. `rounds` are without `p_cached`, those that the worker has: a round that is over does not change. All are returned where the
-- last of these ended at another time: a power cut has undone that round, and it ran again.
CREATE FUNCTION planq_stage_claims(p_numbers int[], p_jobs uuid[], p_cached planq_cached[])
RETURNS TABLE (n int, claim json, attempt int, status text) LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT t.n, json_build_object(
        'job_id', t.job, 'tenant_id', j.tenant_id, 'status', j.status, 'round', j.round, 'attempt', j.stage_attempt,
        'deferral', CASE WHEN j.batch_id IS NOT NULL THEN planq_deferral(t.job, j.batch_id, j.resumes) END,
        'strategy', j.strategy, 'rounds', CASE WHEN j.has_rounds
            THEN planq_rounds(t.job, CASE WHEN k.is_known THEN t.rounds ELSE 0 END, j.round, CASE WHEN k.is_known THEN t.index ELSE 0 END) END,
        'rounds_ended', CASE WHEN j.has_rounds
            THEN planq_round_ended(t.job, j.round - 1, CASE WHEN k.is_known THEN t.index ELSE 0 END) END,
        'rounds_time_left', CASE WHEN j.has_rounds THEN extract(epoch FROM j.rounds_deadline - planq_now())::float8 END,
        'merged', CASE WHEN j.has_rounds AND j.conversation_id IS NOT NULL
            THEN planq_merged(j.conversation_id, t.job, j.round) END,
        'model', j.model, 'input', j.input, 'parts', j.parts, 'tools', j.tools, 'limits', j.limits, 'loop', j.loop_block,
        'forked_from', j.forked_from, 'user_id', j.user_id, 'trace_id', j.trace_id, 'conversation_id', j.conversation_id,
        'context_id', coalesce(j.conversation_id, t.job),
        'history', j.history, 'priority', j.priority, 'respond', j.respond, 'on_incomplete', j.on_incomplete,
        'model_settings', j.model_settings, 'time_left', extract(epoch FROM j.expires_at - planq_now())::float8,
        'tried', CASE WHEN j.stage_retry IS NOT NULL
            THEN planq_present_retry(j.stage_retry, j.status, j.round, j.resumes)->'tried' END,
        'kept', CASE WHEN j.stage_retry IS NOT NULL
            THEN planq_present_retry(j.stage_retry, j.status, j.round, j.resumes)->>'kept' END,
        'plan_source', p.source, 'plan_errors', p.errors, 'plan_reuse', p.reuse, 'plan_body', p.body,
        'job_tree', CASE WHEN j.has_job_tree THEN planq_stage_job_tree(t.job) END,
        'results', CASE WHEN j.status = 'responding' AND p.errors IS NULL THEN r.results END), j.stage_attempt, j.status::text
    FROM unnest(p_numbers, p_jobs, p_cached) AS t (n, job, rounds, index, ended)
    CROSS JOIN LATERAL (
        SELECT o.tenant_id, o.status, o.round, o.stage_attempt, o.batch_id, o.model, o.input, o.parts, o.tools, o.limits,
               o.loop_block, o.forked_from, o.user_id, o.trace_id, o.conversation_id, o.history, o.stage_retry, o.resumes,
               o.priority, o.respond, o.on_incomplete, o.model_settings, o.expires_at, o.rounds_deadline, o.strategy,
               o.agent_name IS NOT NULL OR o.parent_job_id IS NOT NULL OR o.round > 0 OR o.budget IS NOT NULL
                   OR o.with_input IS NOT NULL OR o.answer IS NOT NULL AS has_job_tree,
               o.round > 0 AND o.status = 'planning' AS has_rounds
        FROM jobs o WHERE o.id = t.job OFFSET 0
    ) j
    LEFT JOIN LATERAL (
        SELECT o.source, o.errors, o.reuse,
               CASE WHEN j.status = 'planning' OR o.source NOT IN ('caller', 'model') THEN o.body END AS body
        FROM plans o WHERE o.job_id = t.job AND o.round = j.round OFFSET 0
    ) p ON true
    CROSS JOIN LATERAL (
        SELECT CASE WHEN j.has_rounds AND t.rounds IS NOT NULL
            THEN t.ended = planq_round_ended(t.job, t.rounds - 1, t.index) END AS is_known OFFSET 0
    ) k
    CROSS JOIN LATERAL planq_results(CASE j.status WHEN 'responding' THEN t.job END, j.round, '{succeeded,failed}', 0) AS r (results);
END $$;

-- What the stage of a job needs that runs an agent, or is a child, or is in a further round, or shares a budget, or was given
-- something beside its input. It comes apart, null for every other job.
CREATE FUNCTION planq_stage_job_tree(p_job uuid) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    j jobs;
    v_agent json;
    v_skills text[];
    v_texts json := '[]';
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job;
    IF j.agent_name IS NOT NULL THEN
        SELECT document, skills INTO v_agent, v_skills FROM agents
        WHERE tenant_id = j.tenant_id AND name = j.agent_name AND version = j.agent_version;
        SELECT coalesce(json_agg(k.text ORDER BY n.place), '[]') INTO v_texts
        FROM unnest(v_skills, j.skill_versions) WITH ORDINALITY AS n (name, version, place)
        JOIN skills k ON k.tenant_id = j.tenant_id AND k.name = n.name AND k.version = n.version;
    END IF;
    RETURN json_build_object(
        'agent', v_agent, 'agent_name', j.agent_name, 'agent_version', j.agent_version, 'instructions', v_texts,
        'action', j.action, 'with_', coalesce(j.with_input, '{}'), 'depth', j.depth, 'root_job_id', j.root_job_id,
        'parent', CASE WHEN j.parent_job_id IS NOT NULL THEN json_build_object('job_id', j.parent_job_id,
            'round', coalesce(j.parent_round, 0), 'index', coalesce(j.parent_step_index, 0)) END,
        'output', j.output, 'answer', j.answer, 'budgeted', j.budget IS NOT NULL,
        'next_index', coalesce((SELECT max(s.index) + 1 FROM steps s WHERE s.job_id = p_job), 0));
END $$;

-- What is kept of a stage's failed tries, where they are of the stage at which the job stands now; else null.
--   p_retry {stage, round, resumes, tried: {tries, requests, seconds}, error, kept}, error and kept as texts that hold JSON
CREATE FUNCTION planq_present_retry(p_retry json, p_status text, p_round int, p_resumes int) RETURNS json
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_retry->>'stage' = p_status AND (p_retry->>'round')::int = p_round
                 AND (p_retry->>'resumes')::int = p_resumes THEN p_retry END
$$;

-- The outcomes of the steps of one round, from `p_index` on, that were begun and have ended, in plan order; of large outputs the
-- preview. How long a person took to answer is not the tool's time.
CREATE FUNCTION planq_results(p_job uuid, p_round int, p_statuses text[], p_index int) RETURNS SETOF json LANGUAGE sql STABLE AS $$
    SELECT coalesce(json_agg(json_build_object(
        'index', s.index, 'tool_name', s.tool_name, 'status', s.status, 'attempt', s.attempt,
        'arguments', s.arguments, 'inputs', s.inputs, 'output', s.output,
        'payload_hash', encode(s.payload_hash, 'hex'), 'output_bytes', s.output_bytes, 'excerpts', s.excerpts,
        'preview', p.preview, 'content', s.content, 'error', s.error,
        'seconds', extract(epoch FROM coalesce(s.asked_at, s.finished_at) - s.started_at)::float8
    ) ORDER BY s.index), '[]')
    FROM steps s LEFT JOIN payloads p ON p.tenant_id = s.tenant_id AND p.hash = s.payload_hash
    WHERE s.job_id = p_job AND s.round = p_round AND s.index >= p_index AND s.status = ANY (p_statuses)
$$;

-- The rounds from `p_first`, whose steps are not below `p_index`, to before `p_round`, oldest first: {round, source, body,
-- reply, results, artifacts}, as the planner of the next one is shown them. A refused plan has `errors` and no results.
-- `artifacts` are those of bytes, {index, id, media_type, sha256, size}, in the order in which the steps have made them,
-- at most 50 of a round.
CREATE FUNCTION planq_rounds(p_job uuid, p_first int, p_round int, p_index int) RETURNS json LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT json_agg(json_build_object(
        'round', p.round, 'source', p.source, 'body', p.body, 'reply', p.reply, 'errors', p.errors,
        'results', (SELECT r FROM planq_results(p_job, p.round, planq_step_ended(), p_index) AS r),
        'artifacts', (SELECT json_agg(m) FROM (
            SELECT a.step_index AS index, a.id, a.media_type, encode(a.payload_hash, 'hex') AS sha256, o.size
            FROM artifacts a JOIN steps s ON s.job_id = a.job_id AND s.index = a.step_index AND s.round = p.round
            JOIN payloads o ON o.tenant_id = a.tenant_id AND o.hash = a.payload_hash
            WHERE a.job_id = p_job AND a.step_index >= p_index AND a.media_type IS NOT NULL
            ORDER BY a.step_index, a.created_at, a.id LIMIT 50) m)) ORDER BY p.round)
    FROM plans p WHERE p.job_id = p_job AND p.round >= p_first AND p.round < p_round);
END $$;

-- When a round ended, whose steps are not below `p_index`: its time is what tells it from one that ran again under its number.
CREATE FUNCTION planq_round_ended(p_job uuid, p_round int, p_index int) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT greatest(p.created_at, (
        SELECT max(s.finished_at) FROM steps s WHERE s.job_id = p_job AND s.round = p_round AND s.index >= p_index))
    FROM plans p WHERE p.job_id = p_job AND p.round = p_round);
END $$;

-- StepsClaimed: takes those of a round's steps `p_indices` that are ready, not held, and whose time has come, as far as this
-- worker can run them (planq_can_run). Of several, those
-- that somebody else is just moving are passed over: so two of these, or one and a transition of the whole job, never
-- wait for each other in a circle. Returns rows (index, claim) in plan order: a claim holds what users, tools and models wrote,
-- and is taken apart nowhere in SQL, which refuses JSON with \u0000.
CREATE FUNCTION planq_claim_steps(p_job uuid, p_round int, p_indices int[], p_worker uuid)
RETURNS TABLE (index int, claim json) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_ready CONSTANT text[] := planq_step_ready();
    v_executing CONSTANT text := 'executing';
    v_free int[] := p_indices;
BEGIN
    PERFORM FROM jobs WHERE id = p_job AND status = v_executing AND paused_at IS NULL AND format <= planq_format();
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF cardinality(p_indices) > 1 THEN
        SELECT array_agg(f.index ORDER BY f.index) INTO v_free FROM (
            SELECT index FROM steps WHERE job_id = p_job AND round = p_round AND index = ANY (p_indices)
              AND status = ANY (v_ready) AND run_at <= planq_now() AND wake_at IS NOT NULL
            FOR NO KEY UPDATE SKIP LOCKED
        ) f;
    END IF;
    RETURN QUERY SELECT t.index, t.claim FROM planq_take_steps(
        ARRAY(SELECT ROW(0, p_job, p_round, i, 0)::planq_step_ref FROM unnest(v_free) i), true, p_worker) t;
END $$;

-- Steps begin their next attempts, in `p_worker`: their time has come, and this worker can run them. Each waits for no step but the
-- `awaited` that have just ended. Without any it is ready: all are out, or held, as one is that follows (`p_are_out`). Returns those
-- that were taken, in the order of `p_steps`. A caller for whom they are not out holds the rows of their jobs; who claims what is out
-- needs none.
CREATE FUNCTION planq_take_steps(p_steps planq_step_ref[], p_are_out boolean, p_worker uuid)
RETURNS SETOF planq_taken LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_free CONSTANT text[] := planq_step_unstarted();
    v_taken planq_step_ref[];
BEGIN
    WITH taken AS (
        UPDATE steps s SET status = 'running', attempt = s.attempt + 1, worker_id = p_worker, pending = 0,
            started_at = coalesce(s.started_at, planq_clock()),
            deadline = planq_now() + make_interval(secs => s.timeout_seconds), wake_at = NULL, wakes = 0,
            tool_away_since = NULL, progress = NULL
        FROM unnest(p_steps) WITH ORDINALITY AS t (n, job, round, index, awaited, place)
        WHERE t.n BETWEEN 0 AND 9999 AND s.job_id = t.job AND s.index = t.index
          AND s.round = t.round AND s.status = ANY (v_free) AND s.pending = t.awaited
          AND (s.wake_at IS NOT NULL) = p_are_out AND s.run_at <= planq_now()
          AND planq_can_run(p_worker, s.pool, s.tool_name, s.tool_digest)
        RETURNING t.place, t.n, s.job_id, s.round, s.index, s.attempt, s.tool_name, s.tenant_id
    ), told AS (
        INSERT INTO events (tenant_id, job_id, kind, data)
        SELECT tenant_id, job_id, 'step_started', planq_start_told(round, index, attempt, tool_name, p_worker)
        FROM taken
    )
    SELECT array_agg(ROW(n, job_id, round, index, 0)::planq_step_ref ORDER BY place) INTO v_taken FROM taken;
    RETURN QUERY SELECT * FROM planq_step_claims(v_taken);
END $$;

-- The claims of steps, by the names of `StepClaim`: with the outputs that each references, of large ones what is known; with what
-- people answered to it, and with the loop blocks of its job and of those above, whose tool policies hold for it. `tries` are the
-- attempts that count: the one that delegates and the one that gathers are one together.
CREATE FUNCTION planq_step_claims(p_steps planq_step_ref[])
RETURNS SETOF planq_taken LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT t.n, t.job, t.index, s.effect::text, json_build_object(
        'job_id', t.job, 'round', s.round, 'index', s.index, 'tenant_id', s.tenant_id, 'tool_name', s.tool_name,
        'effect', s.effect, 'pool', s.pool, 'arguments', s.arguments, 'verbatim', s.verbatim, 'attempt', s.attempt, 'retry', s.retry,
        'recovery', s.recovery, 'in_doubt', s.in_doubt, 'wanted', s.wanted, 'dependents', cardinality(s.dependents),
        'worker_losses', s.worker_losses, 'tries', s.attempt - s.worker_losses - s.releases - s.joined::int,
        'timeout_seconds', s.timeout_seconds, 'user_id', j.user_id, 'trace_id', j.trace_id,
        'conversation_id', j.conversation_id, 'context_id', coalesce(j.conversation_id, t.job),
        'waited', CASE WHEN json_typeof(s.error->'details'->'waited_seconds') = 'number' THEN
            least((s.error->'details'->>'waited_seconds')::float8, 1e6) ELSE 0 END,
        'priority', j.priority, 'time_left', extract(epoch FROM j.deadline - planq_now())::float8,
        'outputs', coalesce(o.outputs, '{}'),
        'job_tree', CASE WHEN s.kind <> 'tool' OR s.joined OR j.agent_name IS NOT NULL OR j.parent_job_id IS NOT NULL
            THEN planq_step_job_tree(t.job, t.index) ELSE '{}' END,
        -- An answer hands its step back, unless it was asked ahead.
        'answers', CASE WHEN s.releases > 0 OR s.is_asked_ahead THEN planq_step_answers(t.job, t.index) ELSE '[]' END,
        'loops', CASE WHEN j.loop_block IS NOT NULL OR j.parent_job_id IS NOT NULL THEN planq_loop_blocks(t.job) ELSE '[]' END)
    FROM unnest(p_steps) WITH ORDINALITY AS t (n, job, round, index, awaited, place)
    CROSS JOIN LATERAL (SELECT * FROM steps o WHERE o.job_id = t.job AND o.index = t.index OFFSET 0) s
    CROSS JOIN LATERAL (
        SELECT o.user_id, o.trace_id, o.conversation_id, o.priority, o.deadline, o.agent_name, o.parent_job_id, o.loop_block
        FROM jobs o WHERE o.id = t.job OFFSET 0
    ) j
    CROSS JOIN LATERAL (
        SELECT json_object_agg(i.index, json_build_object(
            'output', i.output, 'payload_hash', encode(i.payload_hash, 'hex'),
            'output_bytes', i.output_bytes, 'excerpts', i.excerpts)) AS outputs
        FROM steps i WHERE i.job_id = t.job AND i.index = ANY (s.inputs)
    ) o
    ORDER BY t.place;
END $$;

-- What the claim of a step needs that delegates, or whose job is one of an agent or a child job.
CREATE FUNCTION planq_step_job_tree(p_job uuid, p_index int) RETURNS json LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT json_build_object(
        'kind', s.kind, 'joined', s.joined, 'note', s.note, 'depth', o.depth,
        'root_job_id', o.root_job_id, 'agent', o.agent_name,
        'limits', CASE WHEN s.kind <> 'tool' THEN o.limits END, 'skill_id', (
            SELECT a.skills[1] FROM agents a
            WHERE a.tenant_id = s.tenant_id AND a.name = o.agent_name AND a.version = o.agent_version))
    FROM steps s JOIN jobs o ON o.id = s.job_id WHERE s.job_id = p_job AND s.index = p_index);
END $$;

-- What people have answered to a step, and it has not used yet.
CREATE FUNCTION planq_step_answers(p_job uuid, p_index int) RETURNS json LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(json_agg(json_build_object(
        'kind', q.kind, 'status', q.status, 'content', q.content, 'reason', q.reason, 'ordinal', q.ordinal,
        'details', coalesce(q.details, '{}'), 'state', q.state, 'asked_of', q.asked_of,
        'sealed_as', CASE WHEN q.is_secret AND q.status = 'accepted' THEN planq_sealed_as(q.id) END) ORDER BY q.id), '[]')
    FROM questions q
    WHERE q.job_id = p_job AND q.step_index = p_index AND q.status <> 'open' AND q.kind <> 'outcome' AND NOT q.is_spent);
END $$;

-- The loop blocks of a job and of those above it.
CREATE FUNCTION planq_loop_blocks(p_job uuid) RETURNS json LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(json_agg(o.loop_block ORDER BY o.id), '[]') FROM jobs o
            WHERE o.id = ANY (planq_lineage(p_job)) AND o.loop_block IS NOT NULL);
END $$;

-- Takes over what a transition has made ready: `p_result` is what it returned, the caller holds the job's row, the worker has
-- its rounds `p_cached`.
-- Returns it with {taken: [claims], stage: claim}, the steps that were taken not in `ready` any more.
CREATE FUNCTION planq_take(
    p_result json, p_job uuid, p_round int, p_pool text, p_steps int, p_stage boolean, p_worker uuid, p_seconds float8,
    p_cached planq_cached
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_mine int[];
    v_claimed int[] := '{}';
    v_ready json[] := '{}';
    v_taken json[] := '{}';
    v_stage record;
    r record;
BEGIN
    IF NOT (p_result->>'applied')::boolean OR (p_steps = 0 AND NOT p_stage) THEN
        RETURN p_result;
    END IF;
    IF p_steps > 0 THEN
        SELECT array_agg(m.index) INTO v_mine FROM (
            SELECT t.index FROM ROWS FROM (json_to_recordset(p_result->'ready') AS (index int, pool text))
                WITH ORDINALITY AS t (index, pool, place)
            WHERE t.pool = p_pool ORDER BY t.place LIMIT p_steps
        ) m;
        IF v_mine IS NOT NULL THEN
            SELECT coalesce(array_agg(c.claim), '{}'), coalesce(array_agg(c.index), '{}') INTO v_taken, v_claimed
            FROM planq_claim_steps(p_job, p_round, v_mine, p_worker) c;
        END IF;
    END IF;
    FOR r IN SELECT t.value FROM json_array_elements(p_result->'ready') t
             WHERE (t.value->>'index')::int <> ALL (v_claimed) LOOP
        v_ready := v_ready || r.value;
    END LOOP;
    SELECT s.claim, s.attempt INTO v_stage FROM planq_take_stages(
        CASE WHEN p_stage AND p_result->>'job_status' IN ('responding', 'planning')
            THEN json_build_array(json_build_object('n', 0, 'job', p_job, 'cached', p_cached))
            ELSE '[]' END, p_worker, p_seconds) s;
    RETURN json_build_object(
        'applied', true, 'status', p_result->'status', 'job_status', p_result->'job_status',
        'stage_attempt', coalesce(v_stage.attempt, (p_result->>'stage_attempt')::int, 0),
        'ready', array_to_json(v_ready), 'taken', array_to_json(v_taken), 'stage', v_stage.claim);
END $$;
