-- Suspects: what was in flight in a lost worker. What may have killed it runs again in quarantine: in a worker that has
-- nothing else in flight, in groups that each loss makes smaller.
--
-- planq_take_back          takes an attempt from a lost worker
-- planq_enter_quarantine   a worker begins to take nothing else, because suspects wait
-- planq_claim_suspects     that worker claims a group of them, once nothing else is in flight in it
--
-- A row of `suspects` counts only while its attempt is the newest one of its step or stage (`index` -1). It waits for its
-- quarantine from `due_at` on. Lock order: the job, its steps, then suspects.

-- StepFailed, StageReleased: takes a lost attempt at a step, or at a stage (`index` -1), back from its worker; `p_item` is a
-- `planq_outcome`. Where it is `lost` the loss counts against the step or stage, otherwise against nothing. What is tried again is
-- a suspect. A first loss is mostly a deployment, or a memory that was full, so any worker claims it; from the second loss in a
-- row on it waits for its quarantine. Returns as planq_finish_step does, of a stage {applied}.
CREATE FUNCTION planq_take_back(p_item json) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    i planq_outcome := json_populate_record(NULL::planq_outcome, p_item);
    n suspects;
    v_result json;
BEGIN
    IF i.index < 0 THEN
        v_result := json_build_object('applied', planq_release_stage(i.job, i.attempt, i.lost, NULL), 'status', 'ready');
        SELECT round INTO i.round FROM jobs WHERE id = i.job;
    ELSE
        v_result := planq_finish_step(i);
    END IF;
    IF NOT (v_result->>'applied')::boolean OR v_result->>'status' <> 'ready' THEN
        RETURN v_result;
    END IF;
    UPDATE suspects SET due_at = CASE WHEN group_id IS NOT NULL AND losses > 1
        THEN planq_now() + make_interval(secs => coalesce(i.retry_in, 0)) END
    WHERE job_id = i.job AND round = i.round AND index = i.index AND attempt = i.attempt
    RETURNING * INTO n;
    IF n.job_id IS NOT NULL AND i.index >= 0 THEN
        UPDATE steps SET releases = releases + (NOT i.lost)::int,
            run_at = run_at + CASE WHEN n.due_at IS NULL THEN '0' ELSE planq_quarantine() END,
            wake_at = wake_at + CASE WHEN n.due_at IS NULL THEN '0' ELSE planq_quarantine() END
        WHERE job_id = i.job AND round = i.round AND index = i.index;
    ELSIF n.due_at IS NOT NULL THEN
        UPDATE jobs SET run_at = planq_now() + planq_quarantine(), wake_at = planq_now() + planq_quarantine()
        WHERE id = i.job;
    END IF;
    RETURN v_result;
END $$;

-- Returns whether a worker may begin a quarantine: it counts as `in_quarantine` from then on. Of those of a pool that live at
-- most half are, and no more than groups wait; a worker that is alone may, too.
CREATE FUNCTION planq_enter_quarantine(p_pool text, p_worker uuid, p_lease_seconds float8) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_alone int;
    v_others int;
    v_groups int;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('planq.quarantine'));
    SELECT count(*), count(*) FILTER (WHERE in_quarantine) INTO v_others, v_alone FROM workers
    WHERE id <> p_worker AND p_pool = ANY (pools) AND NOT has_processes
      AND heartbeat_at > planq_now() - make_interval(secs => p_lease_seconds);
    SELECT count(DISTINCT group_id) INTO v_groups FROM suspects WHERE pool = p_pool AND due_at <= planq_now();
    IF v_groups <= v_alone OR (v_alone > 0 AND 2 * (v_alone + 1) > v_others + 1) THEN
        RETURN false;
    END IF;
    UPDATE workers SET in_quarantine = true WHERE id = p_worker;
    RETURN FOUND;
END $$;

-- StepClaimed, StageClaimed: takes what is due of the group of the pool that has waited for longest. What the loss has cost
-- counts against neither the plan's time nor the job's. Returns rows (claim), for steps and stages.
CREATE FUNCTION planq_claim_suspects(p_pool text, p_worker uuid, p_seconds float8) RETURNS TABLE (claim json)
LANGUAGE plpgsql AS $$
DECLARE
    v_group uuid;
    r suspects;
BEGIN
    -- Without it two would wait for the same group, and one would get nothing.
    PERFORM pg_advisory_xact_lock(hashtext('planq.quarantine'));
    v_group := (SELECT group_id FROM suspects WHERE pool = p_pool AND due_at <= planq_now() ORDER BY due_at LIMIT 1);
    FOR r IN
        WITH due AS (
            UPDATE suspects SET due_at = NULL WHERE group_id = v_group AND due_at <= planq_now() RETURNING *
        )
        SELECT * FROM due ORDER BY job_id, round, index
    LOOP
        IF r.delays THEN
            UPDATE jobs SET deadline = deadline + (planq_now() - r.noted_at),
                expires_at = expires_at + (planq_now() - r.noted_at)
            WHERE id = r.job_id AND status IN ('planning', 'executing', 'responding');
        END IF;
        IF r.index < 0 THEN
            UPDATE jobs SET run_at = planq_now() WHERE id = r.job_id AND stage_attempt = r.attempt
              AND stage_worker IS NULL AND status IN ('planning', 'responding');
            IF FOUND THEN
                RETURN QUERY SELECT c.claim FROM planq_claim_stages(json_build_array(json_build_object(
                    'n', 0, 'job', r.job_id, 'statuses', ARRAY['planning', 'responding'])), p_worker, p_seconds) c;
            END IF;
        ELSE
            UPDATE steps SET run_at = planq_now() WHERE job_id = r.job_id AND round = r.round AND index = r.index
              AND attempt = r.attempt AND status = ANY (planq_step_ready());
            IF FOUND THEN
                RETURN QUERY SELECT c.claim FROM planq_claim_steps(r.job_id, r.round, ARRAY[r.index], p_worker) c;
            END IF;
        END IF;
    END LOOP;
END $$;
