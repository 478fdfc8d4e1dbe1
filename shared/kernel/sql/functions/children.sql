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
-- at once. `p_worker` must own the attempt. Returns {applied, status, job_status, ready, children: [{id, agent}, …] of those that
-- may be begun}.
CREATE FUNCTION planq_delegate_step(
    p_job uuid, p_round int, p_index int, p_attempt int, p_worker uuid, p_children json, p_until text, p_most int, p_note json
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
      AND worker_id = p_worker AND NOT joined;
    IF NOT FOUND THEN
        RETURN json_build_object('applied', false);
    END IF;
    UPDATE jobs SET out_steps = out_steps - 1 WHERE id = p_job AND places IS NOT NULL;
    v_dead := planq_make_children(j, p_index, p_children, p_most);
    UPDATE steps SET open_children = cardinality(v_ids) - v_dead, next_child = least(p_most, cardinality(v_ids))
    WHERE job_id = p_job AND round = p_round AND index = p_index;
    PERFORM planq_append_event(j.tenant_id, p_job, 'step_delegated', json_build_object(
        'round', p_round, 'index', p_index, 'attempt', p_attempt, 'children', cardinality(v_ids), 'until', p_until));
    IF v_dead = cardinality(v_ids) OR (p_until = 'first_failure' AND v_dead > 0) THEN
        UPDATE jobs SET run_at = planq_never(), wake_at = planq_never() WHERE id = ANY (v_ids) AND status = 'queued';
        RETURN planq_gather(p_job, p_round, p_index);
    END IF;
    SELECT json_agg(json_build_object('job_id', c.id, 'agent', c.agent_name) ORDER BY c.id) INTO v_begun FROM jobs c
    WHERE c.id = ANY (v_ids) AND c.status = 'queued' AND c.run_at <= planq_now() AND c.paused_at IS NULL;
    RETURN json_build_object('applied', true, 'status', 'waiting', 'job_status', j.status,
        'stage_attempt', j.stage_attempt, 'ready', '[]'::json, 'children', v_begun);
END $$;

-- Stores the child jobs of a step of the job `j`. `p_children` lists {id, position, agent, input, action, with_, timeout_seconds, key,
-- plan, plan_source, model, history}, `with_` and `plan` as texts that hold JSON. At most `p_most` may begin; a child that cannot
-- begin has failed at once. Returns how many have failed. The caller holds the job.
CREATE FUNCTION planq_make_children(j jobs, p_index int, p_children json, p_most int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_left CONSTANT float8 := planq_time_left(j.deadline, j.expires_at, j.paused_at);
    v_children json;
    v_held json;
    v_dead uuid[];
    v_errors json[];
BEGIN
    WITH given AS (
        SELECT c.*, a.version, a.pinned, a.strategy, a.loop_block, greatest(least(c.timeout_seconds, v_left), 0.001) AS life,
               e.error
        FROM json_to_recordset(p_children) AS c (
            id uuid, position int, agent text, input text, action text, with_ text, timeout_seconds float8, key text,
            plan text, plan_source text, model text, history text
        ) LEFT JOIN LATERAL (
            SELECT d.version, d.strategy, (
                -- The newest version in use of each skill that the agent lists, in the agent's order.
                SELECT array_agg(k.version ORDER BY n.place) FROM unnest(d.skills) WITH ORDINALITY AS n (name, place)
                LEFT JOIN LATERAL (
                    SELECT version FROM skills WHERE tenant_id = j.tenant_id AND name = n.name AND retired_at IS NULL
                    ORDER BY version DESC LIMIT 1
                ) k ON true
            ) AS pinned,
            -- A prompt that names a skill gets that skill's newest text in use, and none where there is no such skill.
            CASE WHEN d.loop_block->'prompt'->>'name' IS NULL THEN d.loop_block
                ELSE jsonb_set(d.loop_block::jsonb, '{prompt}', jsonb_strip_nulls(jsonb_build_object(
                    'name', d.loop_block->'prompt'->>'name', 'text', (
                        SELECT text FROM skills
                        WHERE tenant_id = j.tenant_id AND name = d.loop_block->'prompt'->>'name' AND retired_at IS NULL
                        ORDER BY version DESC LIMIT 1))))::json END AS loop_block
            FROM agents d
            WHERE d.tenant_id = j.tenant_id AND d.name = c.agent AND d.retired_at IS NULL
            ORDER BY d.version DESC LIMIT 1
        ) a ON true
        LEFT JOIN LATERAL (
            SELECT json_build_object('code', w.code, 'retryable', false, 'details', json_build_object('agent', c.agent),
                'message', 'agent ' || to_json(left(c.agent, 128))::text || w.text) AS error
            FROM (VALUES
                ('unknown_agent', ' not found: none in use has this name; see `planq agents list`', a.version IS NULL),
                ('invalid_request', ' lists skills that are not stored; store them first', array_position(a.pinned, NULL) IS NOT NULL)
            ) AS w (code, text, is_so) WHERE w.is_so AND c.agent IS NOT NULL
        ) e ON true
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
           array_agg(c.id) FILTER (WHERE c.error IS NOT NULL), array_agg(c.error) FILTER (WHERE c.error IS NOT NULL)
    INTO v_children, v_held, v_dead, v_errors FROM children c;
    PERFORM planq_submit_jobs(v_children, j.conversation_id, NULL);
    PERFORM planq_submit_jobs(v_held, j.conversation_id, planq_never());
    UPDATE jobs c SET status = 'failed', error = d.error, is_joined = true, finished_at = planq_clock(), wake_at = NULL,
        paused_at = NULL
    FROM unnest(v_dead, v_errors) AS d (id, error) WHERE c.id = d.id;
    INSERT INTO events (tenant_id, job_id, kind, data)
    SELECT tenant_id, id, 'job_failed', planq_end_told('failed', error) FROM jobs WHERE id = ANY (v_dead) ORDER BY id;
    RETURN coalesce(cardinality(v_dead), 0);
END $$;

-- A child's limits: those that it has, its times lowered to `p_seconds`; never to nothing, which would be no limit.
CREATE FUNCTION planq_child_limits(p_limits json, p_seconds float8) RETURNS json LANGUAGE sql IMMUTABLE AS $$
    SELECT (p_limits::jsonb || jsonb_build_object(
        'job_timeout_seconds', greatest(p_seconds, 0.001), 'queue_timeout_seconds', greatest(p_seconds, 0.001),
        'plan_timeout_seconds', greatest(least(p_seconds, (p_limits->>'plan_timeout_seconds')::float8), 0.001)))::json
$$;

-- Returns how long a child may take as a whole: at most 300 s, and at most what the job has left minus a tenth of it (5 s at most), in
-- which the job uses its children's results. While the job is paused its time stands still.
CREATE FUNCTION planq_time_left(p_deadline timestamptz, p_expires timestamptz, p_paused timestamptz) RETURNS float8
LANGUAGE sql STABLE AS $$
    SELECT least(300, l.seconds - least(5, greatest(l.seconds, 0) / 10))
    FROM (SELECT extract(epoch FROM least(p_deadline, p_expires) - coalesce(p_paused, planq_now()))::float8 AS seconds) l
$$;

-- ChildEnded: notifies the parent of a child that has ended, once. Its step becomes ready where it need not wait any more, otherwise
-- the next child that is held back begins. Returns {applied, job_id, round, index, priority, tenant, ...} with what
-- planq_finish_step returns of the parent, and `children` as planq_delegate_step does. Not applied where the parent was notified
-- before, or waits no more.
CREATE FUNCTION planq_child_ended(p_child uuid) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    c record;
    e record;
    j jobs;
    s steps;
    v_result json;
    v_left float8;
    v_asked float8;
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
    IF s.open_children = 0
       OR s.waits_for = (CASE e.status WHEN 'completed' THEN 'first_success' ELSE 'first_failure' END) THEN
        v_result := planq_gather(s.job_id, s.round, s.index);
    ELSIF NOT e.was_held THEN
        -- The next child's time runs from now on, within what the step gets, for its child jobs are as old as the delegation. The
        -- time that people took to answer the other children does not count.
        v_left := planq_time_left(j.deadline, j.expires_at, j.paused_at);
        WITH RECURSIVE tree (id) AS (
            SELECT unnest(s.children)
            UNION
            SELECT b.id FROM tree t CROSS JOIN LATERAL (SELECT o.id FROM jobs o WHERE o.parent_job_id = t.id OFFSET 0) b
        )
        SELECT coalesce(sum(extract(epoch FROM coalesce(q.answered_at, planq_now()) - q.waiting_since)), 0)::float8 INTO v_asked
        FROM questions q WHERE q.job_id = ANY (ARRAY(SELECT t.id FROM tree t));
        WHILE v_next IS NULL AND s.next_child < cardinality(s.children) LOOP
            s.next_child := s.next_child + 1;
            UPDATE jobs o SET run_at = planq_now(), wake_at = planq_now() + planq_wake_grace(), wakes = 0,
                limits = planq_child_limits(o.limits, l.seconds),
                expires_at = coalesce(o.paused_at, planq_now()) + make_interval(secs => greatest(l.seconds, 0.001))
            FROM (
                SELECT b.id, least((b.limits->>'job_timeout_seconds')::float8, v_left,
                    s.timeout_seconds + v_asked
                    - extract(epoch FROM coalesce(b.paused_at, planq_now()) - b.created_at)::float8) AS seconds
                FROM jobs b WHERE b.id = s.children[s.next_child]
            ) l
            WHERE o.id = l.id AND o.status = 'queued' AND o.run_at = planq_never()
            RETURNING o.id INTO v_next;
        END LOOP;
        UPDATE steps SET next_child = s.next_child WHERE job_id = s.job_id AND round = s.round AND index = s.index;
    END IF;
    RETURN json_build_object('applied', true, 'job_id', s.job_id, 'round', s.round, 'index', s.index,
        'priority', j.priority, 'tenant', j.tenant_id,
        'status', CASE WHEN v_result IS NULL THEN 'waiting' ELSE 'ready' END, 'job_status', j.status,
        'stage_attempt', j.stage_attempt, 'ready', coalesce(v_result->'ready', '[]'::json),
        'children', (SELECT json_build_array(json_build_object('job_id', o.id, 'agent', o.agent_name)) FROM jobs o
                     WHERE o.id = v_next AND j.paused_at IS NULL));
END $$;

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

-- StepSucceeded, of a step that has joined and `p_worker` owns: `p_item` is a `planq_outcome`. What becomes ready the caller claims for
-- itself; RESPOND it may take over. Returns as planq_take does.
CREATE FUNCTION planq_finish_joined(p_item json, p_worker uuid, p_seconds float8) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    i planq_outcome := json_populate_record(NULL::planq_outcome, p_item);
BEGIN
    i.worker := p_worker;
    RETURN planq_take(planq_finish_step(i), i.job, i.round, 'io', 0, i.take_stage, p_worker, p_seconds, i.cached);
END $$;

-- Ends the unfinished child jobs of a step that has ended, in the same commit. Their running attempts are announced on the channel
-- `planq_cancelled`, their ends on `planq_ended`. The caller holds the parent and all jobs above it.
CREATE FUNCTION planq_drop_children(p_children uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_ended uuid[] := planq_end_tree(NULL, NULL, NULL, p_children);
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
