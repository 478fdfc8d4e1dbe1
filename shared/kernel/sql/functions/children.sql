-- Children: a step that delegates waits for child jobs, without a worker.
--
-- planq_delegate_step   stores the child jobs (planq_make_children) and begins as many as may run at once
-- planq_child_ended     notifies the parent of one end: the step may gather (planq_gather), or the next child begins
-- planq_finish_joined stores the outcome of a step that has joined
-- planq_drop_children   ends what is unfinished of the children of a step that has ended
--
-- Lock order: the parent's job row, its steps, then its child jobs in the order of their ids, which are all greater than
-- the parent's. A child ends in a commit of its own; its parent is notified in another one.

-- StepDelegated: stores the child jobs, for which the step waits as `p_until` says; at most `p_most` of them are begun
-- at once. Returns {applied, status, job_status, ready, children: [{id, agent}, …] of those that may be begun}.
CREATE FUNCTION planq_delegate_step(
    p_job uuid, p_round int, p_index int, p_attempt int, p_children json, p_until text, p_most int, p_note json
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    j jobs;
    v_ids uuid[];
    v_dead int;
    v_begun json;
BEGIN
    SELECT * INTO j FROM jobs WHERE id = p_job FOR NO KEY UPDATE;
    IF j.id IS NULL OR j.status <> 'executing' OR j.round <> p_round THEN
        RETURN json_build_object('applied', false);
    END IF;
    SELECT array_agg(c.id ORDER BY c.position) INTO v_ids FROM json_to_recordset(p_children) AS c (id uuid, position int);
    UPDATE steps SET status = 'waiting', waits_for = p_until, max_parallel = p_most, note = p_note, children = v_ids,
        worker_id = NULL, deadline = NULL, wake_at = NULL, wakes = 0
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = ANY (planq_step_running()) AND attempt = p_attempt
      AND NOT joined;
    IF NOT FOUND THEN
        RETURN json_build_object('applied', false);
    END IF;
    UPDATE jobs SET out_steps = out_steps - 1 WHERE id = p_job AND places IS NOT NULL;
    v_dead := planq_make_children(j, p_index, p_children, p_most);
    UPDATE steps SET open_children = cardinality(v_ids) - v_dead, next_child = least(p_most, cardinality(v_ids))
    WHERE job_id = p_job AND round = p_round AND index = p_index;
    PERFORM planq_append_event(j.tenant_id, p_job, 'step_delegated', json_build_object(
        'round', p_round, 'index', p_index, 'attempt', p_attempt, 'children', cardinality(v_ids), 'until', p_until));
    IF planq_is_decided(p_until, cardinality(v_ids) - v_dead, false, v_dead > 0) THEN
        UPDATE jobs SET run_at = planq_never(), wake_at = planq_never() WHERE id = ANY (v_ids) AND status = 'queued';
        RETURN planq_gather(p_job, p_round, p_index);
    END IF;
    SELECT json_agg(json_build_object('job_id', c.id, 'agent', c.agent_name) ORDER BY c.id) INTO v_begun FROM jobs c
    WHERE c.id = ANY (v_ids) AND c.status = 'queued' AND c.run_at <= planq_now() AND c.paused_at IS NULL;
    RETURN json_build_object('applied', true, 'status', 'waiting', 'job_status', j.status,
        'stage_attempt', j.stage_attempt, 'ready', '[]'::json, 'children', v_begun);
END $$;

-- Stores the child jobs of a step of the job `j`, which the caller holds. `p_children` lists {id,
-- position, agent, input, action, with_, timeout_seconds, key, plan, plan_source, model, history}, `with_` and `plan` as texts
-- that hold JSON.
-- At most `p_most` may be begun; one that cannot begin has failed at once. Returns how many have.
CREATE FUNCTION planq_make_children(j jobs, p_index int, p_children json, p_most int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_left CONSTANT float8 := planq_time_left(j.deadline, j.expires_at, j.paused_at);
    v_children json;
    v_held json;
    v_dead uuid[];
BEGIN
    WITH given AS (
        SELECT c.*, a.version, a.pinned, a.strategy, a.loop_block, greatest(least(c.timeout_seconds, v_left), 0.001) AS life,
               planq_child_error(c.agent, a.version, a.pinned) AS error
        FROM json_to_recordset(p_children) AS c (
            id uuid, position int, agent text, input text, action text, with_ text, timeout_seconds float8, key text,
            plan text, plan_source text, model text, history text
        ) LEFT JOIN LATERAL (
            SELECT d.version, planq_pinned_skills(j.tenant_id, d.skills) AS pinned, d.strategy,
                   planq_loop_block(j.tenant_id, d.loop_block) AS loop_block FROM agents d
            WHERE d.tenant_id = j.tenant_id AND d.name = c.agent AND d.retired_at IS NULL
            ORDER BY d.version DESC LIMIT 1
        ) a ON true
    ), children AS (
        SELECT g.id, j.tenant_id, j.id AS parent_job_id, j.round AS parent_round, p_index AS parent_step_index,
               g.position AS child_position, g.key AS child_key, coalesce(j.root_job_id, j.id) AS root_job_id,
               j.depth + (g.agent IS NOT NULL)::int AS depth, coalesce(g.strategy, 'plan') AS strategy,
               coalesce(g.model, j.model) AS model, planq_child_limits(j.limits, g.life)::text AS limits, g.input,
               :inherited_values, g.plan, g.plan_source, g.life AS expires_seconds, j.paused_at,
               g.error IS NULL AND row_number() OVER (PARTITION BY g.error IS NULL ORDER BY g.position) > p_most AS is_held,
               g.agent AS agent_name, g.version AS agent_version, g.pinned AS skill_versions, g.action,
               g.with_ AS with_input, g.loop_block::text AS loop_block, j.in_message_flow AS is_task,
               CASE WHEN g.history IS NOT NULL THEN planq_history_of_child(j, g.history) END AS history,
               json_build_object('parent_job_id', j.id, 'step_index', p_index, 'position', g.position) AS origin, g.error
        FROM given g
    )
    SELECT json_agg(c ORDER BY c.id) FILTER (WHERE NOT c.is_held), json_agg(c ORDER BY c.id) FILTER (WHERE c.is_held),
           array_agg(c.id) FILTER (WHERE c.error IS NOT NULL) INTO v_children, v_held, v_dead FROM children c;
    PERFORM planq_submit_jobs(v_children, j.conversation_id, NULL);
    PERFORM planq_submit_jobs(v_held, j.conversation_id, planq_never());
    UPDATE jobs SET status = 'failed', error = planq_child_error(agent_name, agent_version, skill_versions), is_joined = true,
        finished_at = planq_clock(), wake_at = NULL, paused_at = NULL
    WHERE id = ANY (v_dead);
    INSERT INTO events (tenant_id, job_id, kind, data)
    SELECT tenant_id, id, 'job_failed', planq_end_told('failed', error) FROM jobs WHERE id = ANY (v_dead) ORDER BY id;
    RETURN coalesce(cardinality(v_dead), 0);
END $$;

-- The versions that a job pins of the skills of an agent's document, in their order: of each the newest in use.
CREATE FUNCTION planq_pinned_skills(p_tenant text, p_skills text[]) RETURNS int[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT array_agg(k.version ORDER BY n.place) FROM unnest(p_skills) WITH ORDINALITY AS n (name, place)
            LEFT JOIN LATERAL (
                SELECT version FROM skills WHERE tenant_id = p_tenant AND name = n.name AND retired_at IS NULL
                ORDER BY version DESC LIMIT 1
            ) k ON true);
END $$;

-- The loop block of an agent as a job gets it: a prompt that is the name of a skill has the text of its newest version
-- in use, and none where there is no such skill.
CREATE FUNCTION planq_loop_block(p_tenant text, p_block json) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_name CONSTANT text := p_block->'prompt'->>'name';
BEGIN
    IF v_name IS NULL THEN
        RETURN p_block;
    END IF;
    RETURN jsonb_set(p_block::jsonb, '{prompt}', jsonb_strip_nulls(jsonb_build_object('name', v_name, 'text', (
        SELECT text FROM skills WHERE tenant_id = p_tenant AND name = v_name AND retired_at IS NULL
        ORDER BY version DESC LIMIT 1))));
END $$;

-- Why a child cannot begin that an agent is to do: nobody of its name is in use, or a skill that it lists is not. Null
-- where it can.
CREATE FUNCTION planq_child_error(p_agent text, p_version int, p_pinned int[]) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object('code', e.code, 'retryable', false, 'details', json_build_object('agent', p_agent),
        'message', 'agent ' || to_json(left(p_agent, 128))::text || e.text)
    FROM (SELECT 'unknown_agent' AS code, ' not found: none in use has this name; see `planq agents list`' AS text
          WHERE p_version IS NULL
          UNION ALL
          SELECT 'invalid_request', ' lists skills that are not stored; store them first'
          WHERE array_position(p_pinned, NULL) IS NOT NULL) e
    WHERE p_agent IS NOT NULL
$$;

-- A child's limits: those that it has, its times lowered to `p_seconds`; never to nothing, which would be no limit.
CREATE FUNCTION planq_child_limits(p_limits json, p_seconds float8) RETURNS json LANGUAGE sql IMMUTABLE AS $$
    SELECT (p_limits::jsonb || jsonb_build_object(
        'job_timeout_seconds', greatest(p_seconds, 0.001), 'queue_timeout_seconds', greatest(p_seconds, 0.001),
        'plan_timeout_seconds', greatest(least(p_seconds, (p_limits->>'plan_timeout_seconds')::float8), 0.001)))::json
$$;

-- What a child may take as a whole: at most 300 s, and what the job has left but a tenth of it, 5 s at most, in which it makes
-- something of what its children came to. While it is paused its time stands still.
CREATE FUNCTION planq_time_left(p_deadline timestamptz, p_expires timestamptz, p_paused timestamptz) RETURNS float8
LANGUAGE sql STABLE AS $$
    SELECT least(300, l.seconds - least(5, greatest(l.seconds, 0) / 10))
    FROM (SELECT extract(epoch FROM least(p_deadline, p_expires) - coalesce(p_paused, planq_now()))::float8 AS seconds) l
$$;

-- ChildEnded: notifies the parent of a child that has ended, once: its step becomes ready where it need not wait any more,
-- else the next child that is held back begins in its place. Returns {applied, job_id, round, index, priority, tenant, ...} with what
-- planq_finish_step returns of the parent, and `children` as planq_delegate_step does; not applied where there was nothing
-- to be notified, or nobody waits for it any more.
CREATE FUNCTION planq_child_ended(p_child uuid) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    c record;
    e record;
    j jobs;
    s steps;
    v_result json;
    v_next uuid;
BEGIN
    SELECT parent_job_id, parent_round, parent_step_index INTO c FROM jobs
    WHERE id = p_child AND parent_job_id IS NOT NULL AND NOT is_joined
      AND planq_is_ended(status);
    IF NOT FOUND THEN
        RETURN json_build_object('applied', false);
    END IF;
    SELECT * INTO j FROM jobs WHERE id = c.parent_job_id FOR NO KEY UPDATE;
    UPDATE jobs SET is_joined = true
    WHERE id = p_child AND NOT is_joined AND planq_is_ended(status)
    RETURNING status, run_at = planq_never() AS was_held INTO e;
    IF NOT FOUND OR j.id IS NULL THEN
        RETURN json_build_object('applied', false);
    END IF;
    UPDATE steps SET open_children = open_children - 1
    WHERE job_id = j.id AND round = c.parent_round AND index = c.parent_step_index AND status = ANY (planq_step_waiting())
      AND NOT joined AND p_child = ANY (children)
    RETURNING * INTO s;
    IF NOT FOUND THEN
        RETURN json_build_object('applied', false);
    END IF;
    IF planq_is_decided(s.waits_for, s.open_children, e.status = 'completed', e.status <> 'completed') THEN
        v_result := planq_gather(s.job_id, s.round, s.index);
    ELSIF NOT e.was_held THEN
        v_next := planq_begin_next(j, s);
    END IF;
    RETURN json_build_object('applied', true, 'job_id', s.job_id, 'round', s.round, 'index', s.index,
        'priority', j.priority, 'tenant', j.tenant_id,
        'status', CASE WHEN v_result IS NULL THEN 'waiting' ELSE 'ready' END, 'job_status', j.status,
        'stage_attempt', j.stage_attempt, 'ready', coalesce(v_result->'ready', '[]'::json),
        'children', (SELECT json_build_array(json_build_object('job_id', o.id, 'agent', o.agent_name)) FROM jobs o
                     WHERE o.id = v_next AND j.paused_at IS NULL));
END $$;

-- Whether a step that waits as `p_rule` says need not wait any more, when `p_open` of its children have not ended and
-- others have just completed, or failed.
CREATE FUNCTION planq_is_decided(p_rule text, p_open int, p_completed boolean, p_failed boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_open = 0 OR (p_rule = 'first_success' AND p_completed) OR (p_rule = 'first_failure' AND p_failed)
$$;

-- The step need not wait any more: it is ready to be claimed again, to gather. The caller holds the job's row. Returns
-- as planq_finish_step does.
CREATE FUNCTION planq_gather(p_job uuid, p_round int, p_index int) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    s steps;
    j record;
BEGIN
    UPDATE steps SET status = 'ready', joined = true, run_at = planq_now(),
        wake_at = planq_now() + planq_wake_grace(), wakes = 0
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = ANY (planq_step_waiting()) AND NOT joined
    RETURNING * INTO s;
    ASSERT FOUND, 'gathered_without_waiting';
    UPDATE jobs SET out_steps = out_steps + 1 WHERE id = p_job AND places IS NOT NULL;
    SELECT status, stage_attempt INTO j FROM jobs WHERE id = p_job;
    PERFORM planq_append_event(s.tenant_id, p_job, 'step_gathered',
        json_build_object('round', p_round, 'index', p_index, 'open', s.open_children));
    RETURN json_build_object('applied', true, 'status', 'ready', 'job_status', j.status,
        'stage_attempt', j.stage_attempt, 'ready', json_build_array(
            json_build_object('index', s.index, 'pool', s.pool, 'tool_name', s.tool_name)));
END $$;

-- Begins the next child of a step that is held back: its time runs from now on, within what the step gets, for its child
-- jobs are as old as the delegation; what people took to answer the others is not taken off that. The caller holds the
-- parent's row. Returns its id, null when none is left.
CREATE FUNCTION planq_begin_next(j jobs, s steps) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    v_left CONSTANT float8 := planq_time_left(j.deadline, j.expires_at, j.paused_at);
    v_next int := s.next_child;
    v_child uuid;
BEGIN
    WHILE v_child IS NULL AND v_next < cardinality(s.children) LOOP
        v_next := v_next + 1;
        UPDATE jobs c SET run_at = planq_now(), wake_at = planq_now() + planq_wake_grace(), wakes = 0,
            limits = planq_child_limits(c.limits, l.seconds),
            expires_at = coalesce(c.paused_at, planq_now()) + make_interval(secs => greatest(l.seconds, 0.001))
        FROM (
            SELECT o.id, least((o.limits->>'job_timeout_seconds')::float8, v_left,
                s.timeout_seconds + planq_people_seconds(s.children)
                - extract(epoch FROM coalesce(o.paused_at, planq_now()) - o.created_at)::float8) AS seconds
            FROM jobs o WHERE o.id = s.children[v_next]
        ) l
        WHERE c.id = l.id AND c.status = 'queued' AND c.run_at = planq_never()
        RETURNING c.id INTO v_child;
    END LOOP;
    UPDATE steps SET next_child = v_next WHERE job_id = s.job_id AND round = s.round AND index = s.index;
    RETURN v_child;
END $$;

-- StepSucceeded, of a step that has joined: `p_item` is a `planq_outcome`. What becomes ready the caller claims for
-- itself; RESPOND it may take over. Returns as planq_take does.
CREATE FUNCTION planq_finish_joined(p_item json, p_worker uuid, p_seconds float8) RETURNS json LANGUAGE sql AS $$
    SELECT planq_take(planq_finish_step(i), i.job, i.round, 'io', 0, i.take_stage, p_worker, p_seconds, i.cached)
    FROM json_populate_record(NULL::planq_outcome, p_item) AS i
$$;

-- A step with child jobs has ended: those of them that are unfinished end with it, in the same commit. What runs of them
-- somewhere is announced on the channel `planq_cancelled`, their end on `planq_ended`. The caller holds the
-- parent's row and those above it.
CREATE FUNCTION planq_drop_children(p_children uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_ended uuid[] := planq_cancel_tree('{}', p_children);
    v_part uuid[];
BEGIN
    -- A notice holds 8000 bytes, which are 200 ids.
    FOR n IN 0 .. (cardinality(v_ended) - 1) / 200 LOOP
        v_part := v_ended[n * 200 + 1 : n * 200 + 200];
        EXIT WHEN cardinality(v_part) = 0;
        PERFORM pg_notify('planq_cancelled', array_to_string(v_part, ','));
        PERFORM pg_notify('planq_ended', array_to_string(v_part, ','));
    END LOOP;
END $$;
