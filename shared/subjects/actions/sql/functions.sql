-- Job actions: one request for all jobs that a filter selects, done to one job after the other by the process that has taken it
-- (take_action).
--
-- planq_act_on_job    does it to the next job
-- planq_pass_jobs     goes past jobs that it does not concern, or that refuse it; ends it behind the last
--
-- Each of them moves `after_job` from where its caller has seen it: what two processes find at once, one of them does. A job and
-- its count are one commit, so nobody's death repeats or loses one.
--
-- Lock order: the row of the action, then jobs as everywhere. No transition that holds a job asks for an action.

-- JobActedOn: does to `p_job` what the action says, if that stands behind `p_after` and its caller still holds it. The rest is as
-- planq_resume_job takes it. Returns {is_held} and what the transition of the job has returned.
CREATE FUNCTION planq_act_on_job(
    p_action uuid, p_holder uuid, p_after uuid, p_job uuid, p_resumes int, p_in_doubt int[], p_seconds float8, p_hold float8
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    a job_actions%ROWTYPE;
    v_did jsonb;
    v_refusal text;
BEGIN
    UPDATE job_actions SET after_job = p_job, held_until = planq_now() + make_interval(secs => p_hold)
    WHERE id = p_action AND status = 'running' AND held_by = p_holder AND after_job = p_after
    RETURNING * INTO a;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('is_held', false);
    END IF;
    CASE a.act
        WHEN 'cancel' THEN v_did := planq_cancel_job(p_job, a.tenant_id)::jsonb;
        WHEN 'pause' THEN v_did := planq_pause_job(p_job, a.tenant_id)::jsonb;
        ELSE v_did := planq_resume_job(p_job, a.tenant_id, p_resumes, p_in_doubt, p_seconds)::jsonb;
    END CASE;
    v_refusal := CASE WHEN v_did ? 'is_busy' THEN 'another turn of its conversation is active; resume it once that has ended'
        WHEN v_did ? 'is_replaced' THEN 'its line was retried, and has another job by now' END;
    IF v_refusal IS NOT NULL THEN
        PERFORM planq_pass_jobs(p_action, p_holder, p_job, p_job, json_build_object(
            'job_id', p_job, 'code', 'conflict', 'message', v_refusal), false, p_hold);
    ELSE
        UPDATE job_actions SET done = done + (v_did->>'applied')::bool::int, unchanged = unchanged + (NOT (v_did->>'applied')::bool)::int
        WHERE id = p_action AND status = 'running';
    END IF;
    RETURN v_did || jsonb_build_object('is_held', true);
END $$;

-- JobsPassed: the action has looked at all jobs up to `p_to`. With `p_problem` the last of them could not be changed; the first twenty
-- problems are kept. With `p_is_over` no job is left. Returns whether `p_holder` held the action behind `p_after`.
CREATE FUNCTION planq_pass_jobs(p_action uuid, p_holder uuid, p_after uuid, p_to uuid, p_problem json, p_is_over bool, p_hold float8)
RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
    UPDATE job_actions SET after_job = p_to,
        status = CASE WHEN p_is_over THEN 'completed' ELSE status END,
        finished_at = CASE WHEN p_is_over THEN planq_clock() END,
        held_until = planq_now() + make_interval(secs => p_hold),
        refused = refused + (p_problem IS NOT NULL)::int,
        problems = CASE WHEN p_problem IS NULL OR refused >= 20 THEN problems
            ELSE (coalesce(problems::jsonb, '[]') || p_problem::jsonb)::json END
    WHERE id = p_action AND status = 'running' AND held_by = p_holder AND after_job = p_after;
    RETURN FOUND;
END $$;
