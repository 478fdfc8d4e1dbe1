-- Suspects: whatever was in flight in a worker that was lost runs again apart from everything else, in groups that each
-- loss makes smaller.
--
-- planq_take_back_step, planq_take_back_stage   take an attempt from a lost worker
-- planq_take_suspects    a group that is due, for which a process is to be started
-- planq_claim_suspects   that process claims it
--
-- A row of `suspects` counts only while its attempt is the newest one of its step or stage (`index` -1): nothing has to
-- remove it when a job ends. Lock order: the job, its steps, then suspects.

-- StepFailed, of a lost attempt: as planq_finish_step of the `planq_outcome`. A suspect that is tried again waits for a
-- process for suspects. Where it is `lost` the loss counts against the step, else against nothing.
CREATE FUNCTION planq_take_back_step(p_item json) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    i CONSTANT planq_outcome := json_populate_record(NULL::planq_outcome, p_item);
    v_result CONSTANT json := planq_finish_step(i);
BEGIN
    IF v_result->>'status' = 'ready' THEN
        UPDATE suspects SET due_at = planq_now() + make_interval(secs => i.retry_in)
        WHERE job_id = i.job AND round = i.round AND index = i.index AND attempt = i.attempt;
        IF FOUND THEN
            UPDATE steps SET run_at = run_at + planq_quarantine(), wake_at = wake_at + planq_quarantine(),
                releases = releases + (NOT i.lost)::int
            WHERE job_id = i.job AND round = i.round AND index = i.index;
        END IF;
    END IF;
    RETURN v_result;
END $$;

-- StageReleased, of a lost attempt: the same for a stage. Returns whether it applied.
CREATE FUNCTION planq_take_back_stage(p_job uuid, p_attempt int, p_charged boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT planq_release_stage(p_job, p_attempt, p_charged) THEN
        RETURN false;
    END IF;
    UPDATE suspects SET due_at = planq_now() WHERE job_id = p_job AND index = -1 AND attempt = p_attempt;
    IF FOUND THEN
        UPDATE jobs SET run_at = planq_now() + planq_quarantine(), wake_at = planq_now() + planq_quarantine()
        WHERE id = p_job;
    END IF;
    RETURN true;
END $$;

-- Returns a group of suspects of a lane that is due and that nobody else has taken just now, null where there is none.
CREATE FUNCTION planq_take_suspects(p_lane text) RETURNS uuid LANGUAGE sql AS $$
    UPDATE suspects SET taken_until = planq_now() + planq_suspects_grace()
    WHERE due_at <= planq_now() AND coalesce(taken_until <= planq_now(), true) AND group_id = (
        SELECT group_id FROM suspects
        WHERE lane = p_lane AND due_at <= planq_now() AND coalesce(taken_until <= planq_now(), true)
        ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    RETURNING group_id
$$;

-- StepClaimed, StageClaimed: takes what is due of a group, or of the next one of the lane where `p_group` is null. What
-- the loss has cost counts against neither the plan's time nor the job's. Returns rows (claim), for steps and stages.
CREATE FUNCTION planq_claim_suspects(p_group uuid, p_lane text, p_worker uuid, p_seconds float8)
RETURNS TABLE (claim json) LANGUAGE plpgsql AS $$
DECLARE
    v_group CONSTANT uuid := coalesce(p_group, planq_take_suspects(p_lane));
    r suspects;
BEGIN
    FOR r IN
        WITH claimed AS (DELETE FROM suspects WHERE group_id = v_group AND due_at <= planq_now() RETURNING *)
        SELECT * FROM claimed ORDER BY job_id, round, index
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
              AND attempt = r.attempt AND status = 'ready';
            IF FOUND THEN
                RETURN QUERY SELECT c.claim FROM planq_claim_steps(r.job_id, r.round, ARRAY[r.index], p_worker) c;
            END IF;
        END IF;
    END LOOP;
END $$;
