-- Claim: a worker takes a stage or a step by compare-and-set; no row, no work, so a duplicate message is harmless.
--
-- planq_claim_stages   takes PLAN or RESPOND of several jobs (planq_take_stage); planq_stage_claim is what the worker then knows of it
-- planq_claim_steps    takes ready steps of one round (planq_take_step); planq_step_claim is what the worker then knows of each
-- planq_take           claims what a transition has just made ready, in the commit of that transition
--
-- Functions of the hot path are planned once a session, and find rows by their primary key: what the tables looked like
-- at that moment must not matter. So they compare `status` with variables, for which no partial index can be taken, and rely
-- on the settings of planq's sessions (docs/decisions.md, D103). They move one row after the other: a statement for a
-- single row costs a fraction of one that joins, even for ten rows.

-- StageClaimed: takes PLAN or RESPOND stages, those that are neither taken nor over. `p_items` lists {n, job, statuses, cached}
-- in the order of the jobs' ids; the deadline is for a worker that lives but has lost the claim, because the answer to
-- this very call got lost, say. Returns rows (n, claim) of those that were claimed.
CREATE FUNCTION planq_claim_stages(p_items json, p_worker uuid, p_seconds float8) RETURNS TABLE (n int, claim json)
LANGUAGE plpgsql AS $$
DECLARE
    i record;
    s planq_stage;
    v_events planq_event[];
BEGIN
    FOR i IN SELECT * FROM json_to_recordset(p_items) AS c (n int, job uuid, statuses text[], cached planq_cached) LOOP
        s := planq_take_stage(i.job, i.statuses, p_worker, p_seconds, i.cached);
        IF s.attempt IS NOT NULL THEN
            v_events := v_events || s.event;
            n := i.n;
            claim := s.claim;
            RETURN NEXT;
        END IF;
    END LOOP;
    PERFORM planq_append_events(v_events);
    PERFORM planq_flush_later();
END $$;

-- A stage begins its next attempt, in `p_worker`, for up to `p_seconds`: the job is in one of `p_statuses`, is not paused, and its
-- time has come. The worker has the rounds `p_cached`, null for none. Returns nulls where it is not so, or somebody
-- else has the stage; the caller stores the event.
CREATE FUNCTION planq_take_stage(p_job uuid, p_statuses text[], p_worker uuid, p_seconds float8, p_cached planq_cached) RETURNS planq_stage
LANGUAGE plpgsql AS $$
DECLARE
    j record;
BEGIN
    UPDATE jobs SET
        status = CASE status WHEN 'queued' THEN 'planning' ELSE status END,
        stage_worker = p_worker,
        stage_attempt = stage_attempt + 1,
        started_at = coalesce(started_at, planq_clock()),
        -- The time in the queue is over; from here on the whole life counts.
        expires_at = CASE WHEN started_at IS NULL AND resumes = 0
            THEN expires_at + make_interval(secs => greatest(0, (limits->>'job_timeout_seconds')::float8
                                                                - (limits->>'queue_timeout_seconds')::float8))
            ELSE expires_at END,
        deadline = planq_now() + make_interval(secs => p_seconds),
        wake_at = NULL,
        wakes = 0
    WHERE id = p_job AND stage_worker IS NULL AND run_at <= planq_now() AND paused_at IS NULL AND status = ANY (p_statuses)
    RETURNING tenant_id, status, stage_attempt INTO j;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN planq_stage_taken(p_job, j.tenant_id, j.status, j.stage_attempt, p_cached);
END $$;

-- What is told of a stage that was taken: its claim, and its event.
CREATE FUNCTION planq_stage_taken(p_job uuid, p_tenant text, p_stage text, p_attempt int, p_cached planq_cached) RETURNS planq_stage
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ROW(planq_stage_claim(p_job, p_cached), p_attempt, ROW(p_tenant, p_job, 'stage_started',
        json_build_object('stage', p_stage, 'attempt', p_attempt))::planq_event)::planq_stage;
END $$;

-- The claim of a stage, by the names of `StageClaim`: for PLAN the plan that the caller sent, for RESPOND the results of the plan, and
-- the plan itself where neither the caller nor the model made it; for whom the job is, because the first steps may begin
-- before they are stored; the failures of its model that the stage has tried again after, and the time that the job has
-- left. `rounds` are without `p_cached`, those that the worker has: a round that is over does not change. All are returned where the
-- last of these ended at another time: a power cut has undone that round, and it ran again.
CREATE FUNCTION planq_stage_claim(p_job uuid, p_cached planq_cached) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    j record;
    p record;
    v_deferral json;
    v_first int := 0;
    v_index int := 0;
BEGIN
    SELECT tenant_id, status, round, stage_attempt, batch_id, model, input, parts, tools, limits, loop_block, forked_from, user_id,
           trace_id, conversation_id, history, stage_retry, resumes, priority, respond, on_incomplete, model_settings,
           extract(epoch FROM expires_at - planq_now())::float8 AS time_left,
           strategy, agent_name IS NOT NULL OR parent_job_id IS NOT NULL OR round > 0 OR budget IS NOT NULL OR with_input IS NOT NULL
                   OR answer IS NOT NULL
               AS has_job_tree, round > 0 AND status = 'planning' AS has_rounds,
           extract(epoch FROM rounds_deadline - planq_now())::float8 AS rounds_time_left INTO j
    FROM jobs WHERE id = p_job;
    SELECT source, errors, reuse,
           CASE WHEN j.status = 'planning' OR source NOT IN ('caller', 'model') THEN body END AS body INTO p
    FROM plans WHERE job_id = p_job AND round = j.round;
    IF j.batch_id IS NOT NULL THEN
        v_deferral := planq_deferral(p_job, j.batch_id, j.resumes);
    END IF;
    IF j.has_rounds AND p_cached.ended = planq_round_ended(p_job, p_cached.rounds - 1, p_cached.index) THEN
        v_first := p_cached.rounds;
        v_index := p_cached.index;
    END IF;
    RETURN json_build_object(
        'job_id', p_job, 'tenant_id', j.tenant_id, 'status', j.status, 'round', j.round, 'attempt', j.stage_attempt,
        'deferral', v_deferral,
        'strategy', j.strategy, 'rounds', CASE WHEN j.has_rounds THEN planq_rounds(p_job, v_first, j.round, v_index) END,
        'rounds_ended', CASE WHEN j.has_rounds THEN planq_round_ended(p_job, j.round - 1, v_index) END,
        'rounds_time_left', CASE WHEN j.has_rounds THEN j.rounds_time_left END,
        'merged', CASE WHEN j.has_rounds AND j.conversation_id IS NOT NULL
            THEN planq_merged(j.conversation_id, p_job, j.round) END,
        'model', j.model, 'input', j.input, 'parts', j.parts, 'tools', j.tools, 'limits', j.limits, 'loop', j.loop_block,
        'forked_from', j.forked_from, 'user_id', j.user_id, 'trace_id', j.trace_id, 'conversation_id', j.conversation_id,
        'context_id', coalesce(j.conversation_id, p_job),
        'history', j.history, 'priority', j.priority, 'respond', j.respond, 'on_incomplete', j.on_incomplete,
        'model_settings', j.model_settings, 'time_left', j.time_left, 'tried', CASE WHEN j.stage_retry IS NOT NULL
            THEN planq_present_retry(j.stage_retry, j.status, j.round, j.resumes)->'tried' END,
        'kept', CASE WHEN j.stage_retry IS NOT NULL
            THEN planq_present_retry(j.stage_retry, j.status, j.round, j.resumes)->>'kept' END,
        'plan_source', p.source, 'plan_errors', p.errors, 'plan_reuse', p.reuse, 'plan_body', p.body,
        'job_tree', CASE WHEN j.has_job_tree THEN planq_stage_job_tree(p_job) END,
        'results', CASE WHEN j.status = 'responding' AND p.errors IS NULL
            THEN planq_results(p_job, j.round, '{succeeded,failed}', 0) END);
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
CREATE FUNCTION planq_results(p_job uuid, p_round int, p_statuses text[], p_index int) RETURNS json LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(json_agg(json_build_object(
        'index', s.index, 'tool_name', s.tool_name, 'status', s.status, 'attempt', s.attempt,
        'arguments', s.arguments, 'inputs', s.inputs, 'output', s.output,
        'payload_hash', encode(s.payload_hash, 'hex'), 'output_bytes', s.output_bytes, 'excerpts', s.excerpts,
        'preview', p.preview, 'content', s.content, 'error', s.error,
        'seconds', extract(epoch FROM coalesce(s.asked_at, s.finished_at) - s.started_at)::float8
    ) ORDER BY s.index), '[]')
    FROM steps s LEFT JOIN payloads p ON p.tenant_id = s.tenant_id AND p.hash = s.payload_hash
    WHERE s.job_id = p_job AND s.round = p_round AND s.index >= p_index AND s.status = ANY (p_statuses));
END $$;

-- The rounds from `p_first`, whose steps are not below `p_index`, to before `p_round`, oldest first: {round, source, body,
-- reply, results, artifacts}, as the planner of the next one is shown them. A refused plan has `errors` and no results.
-- `artifacts` are those of bytes, {index, id, media_type, sha256, size}, in the order in which the steps have made them,
-- at most 50 of a round.
CREATE FUNCTION planq_rounds(p_job uuid, p_first int, p_round int, p_index int) RETURNS json LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT json_agg(json_build_object(
        'round', p.round, 'source', p.source, 'body', p.body, 'reply', p.reply, 'errors', p.errors,
        'results', planq_results(p_job, p.round, planq_step_ended(), p_index),
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
DECLARE
    v_ready CONSTANT text[] := planq_step_ready();
    v_executing CONSTANT text := 'executing';
    v_free int[] := p_indices;
    v_index int;
    s steps;
    v_events planq_event[];
BEGIN
    PERFORM FROM jobs WHERE id = p_job AND status = v_executing AND paused_at IS NULL;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF cardinality(p_indices) > 1 THEN
        SELECT coalesce(array_agg(f.index ORDER BY f.index), '{}') INTO v_free FROM (
            SELECT steps.index FROM steps WHERE job_id = p_job AND round = p_round AND steps.index = ANY (p_indices)
              AND status = ANY (v_ready) AND run_at <= planq_now() AND wake_at IS NOT NULL
            FOR NO KEY UPDATE SKIP LOCKED
        ) f;
    END IF;
    FOREACH v_index IN ARRAY v_free LOOP
        s := planq_take_step(p_job, p_round, v_index, p_worker, 0, true);
        IF s.job_id IS NOT NULL THEN
            v_events := v_events || planq_step_started(s);
            index := v_index;
            claim := planq_step_claim(s);
            RETURN NEXT;
        END IF;
    END LOOP;
    PERFORM planq_append_events(v_events);
END $$;

-- A step begins its next attempt, in `p_worker`: its time has come, and this worker can run it. It waits for no step but the
-- `p_awaited` that have just ended. Without any it is ready: `is_out`, or held, as one is that follows. Returns the step, nulls
-- where it is not so. A caller for whom it is not out holds the job's row; who claims what is out needs none.
CREATE FUNCTION planq_take_step(
    p_job uuid, p_round int, p_index int, p_worker uuid, p_awaited int, is_out boolean
) RETURNS steps LANGUAGE plpgsql AS $$
DECLARE
    v_free CONSTANT text[] := planq_step_unstarted();
    s steps;
BEGIN
    UPDATE steps SET status = 'running', attempt = attempt + 1, worker_id = p_worker, pending = 0,
        started_at = coalesce(started_at, planq_clock()),
        deadline = planq_now() + make_interval(secs => timeout_seconds), wake_at = NULL, wakes = 0,
        tool_away_since = NULL, progress = NULL
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = ANY (v_free) AND pending = p_awaited
      AND (wake_at IS NOT NULL) = is_out AND run_at <= planq_now()
      AND planq_can_run(p_worker, pool, tool_name, tool_digest)
    RETURNING * INTO s;
    RETURN s;
END $$;

-- The claim of a step, by the names of `StepClaim`: with the outputs that it references, of large ones what is known; with what people answered to it,
-- and with the loop blocks of its job and of those above, whose tool policies hold for it. The
-- `job_tree` is there for steps that delegate, and in jobs of agents and child jobs. It is asked for apart: a query within
-- RETURN would double what every other claim costs. `tries` are the attempts that count: the one that delegates and the one
-- that gathers are one together.
CREATE FUNCTION planq_step_claim(s steps) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    j record;
    v_outputs json := '{}';
    v_family json := '{}';
    v_answers json := '[]';
    v_blocks json := '[]';
BEGIN
    SELECT user_id, trace_id, conversation_id, priority, extract(epoch FROM deadline - planq_now())::float8 AS time_left,
           agent_name, parent_job_id, loop_block IS NOT NULL AS has_block
    INTO j FROM jobs WHERE id = s.job_id;
    IF s.inputs <> '{}' THEN
        SELECT coalesce(json_object_agg(i.index, json_build_object(
            'output', i.output, 'payload_hash', encode(i.payload_hash, 'hex'),
            'output_bytes', i.output_bytes, 'excerpts', i.excerpts)), '{}')
        INTO v_outputs FROM steps i WHERE i.job_id = s.job_id AND i.index = ANY (s.inputs);
    END IF;
    IF s.kind <> 'tool' OR s.joined OR j.agent_name IS NOT NULL OR j.parent_job_id IS NOT NULL THEN
        SELECT json_build_object(
            'kind', s.kind, 'joined', s.joined, 'note', s.note, 'depth', o.depth,
            'root_job_id', o.root_job_id, 'agent', o.agent_name,
            'limits', CASE WHEN s.kind <> 'tool' THEN o.limits END, 'skill_id', (
                SELECT a.skills[1] FROM agents a
                WHERE a.tenant_id = s.tenant_id AND a.name = o.agent_name AND a.version = o.agent_version))
        INTO v_family FROM jobs o WHERE o.id = s.job_id;
    END IF;
    -- An answer hands its step back, unless it was asked ahead.
    IF s.releases > 0 OR s.is_asked_ahead THEN
        SELECT coalesce(json_agg(json_build_object(
            'kind', q.kind, 'status', q.status, 'content', q.content, 'reason', q.reason, 'ordinal', q.ordinal,
            'details', coalesce(q.details, '{}'), 'state', q.state, 'asked_of', q.asked_of,
            'sealed_as', CASE WHEN q.is_secret AND q.status = 'accepted' THEN planq_sealed_as(q.id) END) ORDER BY q.id), '[]')
        INTO v_answers FROM questions q
        WHERE q.job_id = s.job_id AND q.step_index = s.index AND q.status <> 'open' AND q.kind <> 'outcome' AND NOT q.is_spent;
    END IF;
    IF j.has_block OR j.parent_job_id IS NOT NULL THEN
        SELECT coalesce(json_agg(o.loop_block ORDER BY o.id), '[]') INTO v_blocks FROM jobs o
        WHERE o.id = ANY (planq_lineage(s.job_id)) AND o.loop_block IS NOT NULL;
    END IF;
    RETURN json_build_object(
        'job_id', s.job_id, 'round', s.round, 'index', s.index, 'tenant_id', s.tenant_id, 'tool_name', s.tool_name,
        'effect', s.effect, 'pool', s.pool, 'arguments', s.arguments, 'verbatim', s.verbatim, 'attempt', s.attempt, 'retry', s.retry,
        'recovery', s.recovery, 'in_doubt', s.in_doubt, 'wanted', s.wanted, 'dependents', cardinality(s.dependents), 'worker_losses', s.worker_losses,
        'tries', s.attempt - s.worker_losses - s.releases - s.joined::int, 'timeout_seconds', s.timeout_seconds, 'user_id', j.user_id, 'trace_id', j.trace_id,
        'conversation_id', j.conversation_id, 'context_id', coalesce(j.conversation_id, s.job_id),
        'waited', CASE WHEN json_typeof(s.error->'details'->'waited_seconds') = 'number' THEN
            least((s.error->'details'->>'waited_seconds')::float8, 1e6) ELSE 0 END,
        'priority', j.priority, 'time_left', j.time_left, 'outputs', v_outputs, 'job_tree', v_family,
        'answers', v_answers, 'loops', v_blocks);
END $$;

-- The event of a step that was claimed.
CREATE FUNCTION planq_step_started(s steps) RETURNS planq_event LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ROW(s.tenant_id, s.job_id, 'step_started',
        planq_start_told(s.round, s.index, s.attempt, s.tool_name, s.worker_id))::planq_event;
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
    v_stage planq_stage;
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
    IF p_stage AND p_result->>'job_status' IN ('responding', 'planning') THEN
        v_stage := planq_take_stage(p_job, ARRAY['planning', 'responding'], p_worker, p_seconds, p_cached);
        IF v_stage.attempt IS NOT NULL THEN
            PERFORM planq_append_events(ARRAY[v_stage.event]);
        END IF;
    END IF;
    RETURN json_build_object(
        'applied', true, 'status', p_result->'status', 'job_status', p_result->'job_status',
        'stage_attempt', coalesce(v_stage.attempt, (p_result->>'stage_attempt')::int, 0),
        'ready', array_to_json(v_ready), 'taken', array_to_json(v_taken), 'stage', v_stage.claim);
END $$;

