-- Progress: what a running step says of itself, and how much longer it may run by that.
--
-- planq_report_progress   a call has reported, or its worker, which sees that the call's process lives (watch_steps)
--
-- The deadline of a step bounds the time between two reports; `longest_seconds` bounds all of a call, which its worker enforces.
-- While a step is given more time, its plan is, too, and the plans of all jobs above: each has its whole time from then on.

-- StepReported: keeps what an attempt has said, where `p_message` is not null, and lets it run for `p_seconds` from now on, where
-- these are not null. Returns whether it applied.
CREATE FUNCTION planq_report_progress(
    p_job uuid, p_round int, p_index int, p_attempt int, p_worker uuid, p_done float8, p_message text, p_seconds float8
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    s record;
BEGIN
    IF p_seconds IS NOT NULL THEN
        PERFORM planq_lock_lineages(ARRAY[p_job]);
    END IF;
    UPDATE steps SET
        progress = CASE WHEN p_message IS NULL THEN progress
            ELSE json_build_object('done', p_done, 'message', p_message, 'at', planq_clock()) END,
        deadline = CASE WHEN p_seconds IS NULL THEN deadline
            ELSE greatest(deadline, planq_now() + make_interval(secs => p_seconds)) END
    WHERE job_id = p_job AND round = p_round AND index = p_index AND status = ANY (planq_step_running()) AND attempt = p_attempt
      AND worker_id = p_worker
    RETURNING tenant_id INTO s;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_message IS NOT NULL THEN
        PERFORM planq_append_event(s.tenant_id, p_job, 'step_progress', json_build_object(
            'round', p_round, 'index', p_index, 'attempt', p_attempt, 'done', p_done, 'message', p_message));
    END IF;
    IF p_seconds IS NOT NULL THEN
        UPDATE jobs SET deadline = planq_now() + make_interval(secs => (limits->>'plan_timeout_seconds')::float8)
        WHERE id = ANY (planq_lineage(p_job)) AND status = 'executing' AND paused_at IS NULL
          AND deadline < planq_now() + make_interval(secs => (limits->>'plan_timeout_seconds')::float8);
    END IF;
    RETURN true;
END $$;
