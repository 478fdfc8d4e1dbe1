-- Runs (release 0004): steps of one chain that a worker ran one after the other, while the commit that claims the first
-- of them was under way. The rules of 0003_claims.sql and 0003_take.sql hold.

-- What whoever has claimed a stage needs to know: PLAN the plan that the caller sent, RESPOND what came of the plan; and
-- for whom the job is, because the first steps may begin before they are stored.
CREATE OR REPLACE FUNCTION planq_stage_claim(p_job uuid) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    j record;
    p record;
BEGIN
    SELECT tenant_id, status, round, stage_attempt, model, input, tools, limits, forked_from, user_id, trace_id,
           conversation_id INTO j
    FROM jobs WHERE id = p_job;
    SELECT source, errors, reuse, CASE WHEN j.status = 'planning' THEN body END AS body INTO p
    FROM plans WHERE job_id = p_job AND round = j.round;
    RETURN json_build_object(
        'job_id', p_job, 'tenant_id', j.tenant_id, 'status', j.status, 'round', j.round, 'attempt', j.stage_attempt,
        'model', j.model, 'input', j.input, 'tools', j.tools, 'limits', j.limits, 'forked_from', j.forked_from,
        'user_id', j.user_id, 'trace_id', j.trace_id, 'conversation_id', j.conversation_id,
        'plan_source', p.source, 'plan_errors', p.errors, 'plan_reuse', p.reuse, 'plan_body', p.body,
        'results', CASE WHEN j.status = 'responding' AND p.errors IS NULL THEN planq_results(p_job, j.round) END);
END $$;

-- A step of a run that was neither claimed nor begun so far is claimed and succeeds at once, as its first attempt, no
-- earlier than `p_after`; `p_began` and `p_ended` say how many seconds ago that was. Returns the step; nulls where it is
-- not waiting for exactly one step any more, or has been tried. The caller holds the job's row.
CREATE FUNCTION planq_run_one(
    p_job uuid, p_round int, p_index int, p_lane text, p_worker uuid, p_output json, p_after timestamptz,
    p_began float8, p_ended float8
) RETURNS steps LANGUAGE plpgsql AS $$
DECLARE
    v_pending CONSTANT text := 'pending';
    v_now CONSTANT timestamptz := clock_timestamp();
    s steps;
BEGIN
    UPDATE steps SET
        status = 'succeeded', pending = 0, attempt = 1, worker_id = p_worker, output = p_output,
        started_at = greatest(p_after, v_now - make_interval(secs => p_began)),
        finished_at = greatest(p_after, v_now - make_interval(secs => p_ended))
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = v_pending AND pending = 1
      AND attempt = 0 AND lane = p_lane AND run_at <= now()
    RETURNING * INTO s;
    RETURN s;
END $$;

-- StepSucceeded, many times, each followed by those of its run. Items: {n, job, round, index, attempt, output, hash,
-- bytes, excerpts, artifact, ended, run, take_steps, take_stage} as in planq_succeed_steps; `ended` says how many seconds
-- ago the attempt ended; `run` lists {index, output, artifact, began, ended} of the steps that come after it, each the
-- only one that waits for the one before, and waits for nothing else. A run ends before the first step that cannot be
-- claimed: nothing of a paused job is, nothing that is skipped by now. Returns rows (n, moved) of those that landed,
-- `moved` as planq_take does with {steps: how many have succeeded}.
CREATE FUNCTION planq_succeed_runs(p_items json, p_lane text, p_worker uuid, p_seconds float8)
RETURNS TABLE (n int, moved json) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_waiting CONSTANT text := 'waiting';
    v_running CONSTANT text := 'running';
    i record;
    j record;
    r record;
    s steps;
    t steps;
    v_index int;
    v_steps int;
    v_budget int;
    v_stage planq_stage;
    v_ready json[];
    v_taken json[];
    v_events planq_event[];
BEGIN
    FOR i IN SELECT * FROM json_to_recordset(p_items) AS a (
        n int, job uuid, round int, index int, attempt int, output text, hash text, bytes bigint, excerpts text,
        artifact text, ended float8, run json, take_steps int, take_stage boolean
    ) LOOP
        SELECT status, round, open_steps, stage_attempt, paused_at IS NULL AND run_at <= now() AS is_free INTO j
        FROM jobs WHERE id = i.job FOR NO KEY UPDATE;
        CONTINUE WHEN NOT FOUND OR j.status NOT IN ('executing', 'input_required') OR j.round <> i.round;
        UPDATE steps SET
            status = 'succeeded', output = i.output::json, payload_hash = decode(i.hash, 'hex'),
            output_bytes = i.bytes, excerpts = i.excerpts::json, error = NULL, unsure = false,
            finished_at = greatest(started_at, clock_timestamp() - make_interval(secs => coalesce(i.ended, 0))),
            wake_at = NULL, wakes = 0, deadline = NULL
        WHERE job_id = i.job AND round = i.round AND index = i.index AND attempt = i.attempt
          AND (status = v_running OR (status = v_waiting AND question IS NULL))
        RETURNING * INTO s;
        CONTINUE WHEN NOT FOUND;
        v_steps := 1;
        v_ready := '{}';
        v_taken := '{}';
        v_stage := NULL;
        v_budget := CASE WHEN j.is_free THEN i.take_steps ELSE 0 END;
        IF i.hash IS NOT NULL OR i.artifact IS NOT NULL THEN
            PERFORM planq_keep_outcome(s.tenant_id, i.job, i.index, s.tool_name, i.output::json,
                                       decode(i.hash, 'hex'), i.artifact::json);
        END IF;
        v_events := v_events || ROW(s.tenant_id, i.job, 'step_succeeded', json_build_object(
            'round', i.round, 'index', i.index, 'attempt', i.attempt, 'error', NULL))::planq_event;
        IF i.run IS NOT NULL AND v_budget > 0 THEN
            FOR r IN SELECT * FROM json_to_recordset(i.run) AS g (
                index int, output text, artifact text, began float8, ended float8
            ) LOOP
                EXIT WHEN s.dependents <> ARRAY[r.index];
                t := planq_run_one(i.job, i.round, r.index, p_lane, p_worker, r.output::json, s.finished_at, r.began,
                                   r.ended);
                EXIT WHEN t.index IS NULL;
                s := t;
                v_steps := v_steps + 1;
                IF r.artifact IS NOT NULL THEN
                    PERFORM planq_keep_outcome(s.tenant_id, i.job, r.index, s.tool_name, r.output::json, NULL,
                                               r.artifact::json);
                END IF;
                v_events := v_events || planq_step_started(s) || ROW(
                    s.tenant_id, i.job, 'step_succeeded', json_build_object(
                        'round', i.round, 'index', r.index, 'attempt', s.attempt, 'error', NULL))::planq_event;
            END LOOP;
        END IF;
        FOREACH v_index IN ARRAY s.dependents LOOP
            t := planq_unlock_one(i.job, i.round, v_index, p_lane, v_budget > 0, p_worker);
            IF t.status = 'running' THEN
                v_budget := v_budget - 1;
                v_taken := v_taken || planq_step_claim(t);
                v_events := v_events || planq_step_started(t);
            ELSIF t.status = 'ready' THEN
                v_ready := v_ready || json_build_object('index', t.index, 'lane', t.lane, 'tool_name', t.tool_name);
            END IF;
        END LOOP;
        IF j.open_steps > v_steps THEN
            UPDATE jobs SET open_steps = open_steps - v_steps WHERE id = i.job;
        ELSIF i.take_stage AND j.is_free THEN
            j.status := 'responding';
            UPDATE jobs SET open_steps = 1 WHERE id = i.job AND v_steps > 1;
            v_stage := planq_close_and_take_stage(i.job, p_worker, p_seconds);
            v_events := v_events || v_stage.told;
        ELSE
            j.status := planq_close_steps(i.job, v_steps, 0);
        END IF;
        n := i.n;
        moved := json_build_object(
            'landed', true, 'status', 'succeeded', 'job_status', j.status, 'steps', v_steps,
            'stage_attempt', coalesce(v_stage.attempt, j.stage_attempt),
            'ready', array_to_json(v_ready), 'taken', array_to_json(v_taken), 'stage', v_stage.claim);
        RETURN NEXT;
    END LOOP;
    PERFORM planq_tell_all(v_events);
END $$;
