-- Steps whose child jobs have failed, and that delegate again (release 0006).

-- StepFailed, `anew`: as planq_finish_step for a failure; a step that is tried again forgets its child jobs, and what is
-- unfinished of them ends in the same commit. What they cost stays counted: it stands with themselves. The attempt that
-- delegated counts with this one as one.
CREATE FUNCTION planq_fail_anew(
    p_job uuid, p_round int, p_index int, p_attempt int, p_error json, p_retry_in interval
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_moved CONSTANT json := planq_finish_step(
        p_job, p_round, p_index, p_attempt, false, NULL, p_error, p_retry_in, false, NULL, NULL, NULL, NULL, false);
    v_children uuid[];
BEGIN
    IF v_moved->>'status' = 'ready' THEN
        SELECT children INTO v_children FROM steps WHERE job_id = p_job AND round = p_round AND index = p_index;
        UPDATE steps SET gathered = false, children = NULL, open_children = NULL, next_child = NULL, waits_for = NULL,
            max_parallel = NULL, note = NULL, releases = releases + 1
        WHERE job_id = p_job AND round = p_round AND index = p_index AND gathered;
        IF v_children IS NOT NULL THEN
            PERFORM planq_drop_children(v_children);
        END IF;
    END IF;
    RETURN v_moved;
END $$;

-- As in 0003, with `anew`.
CREATE OR REPLACE FUNCTION planq_fail_steps(p_items json, p_lane text, p_worker uuid, p_seconds float8)
RETURNS TABLE (n int, moved json) LANGUAGE sql AS $$
    SELECT i.n, planq_take(
        CASE WHEN i.anew
        THEN planq_fail_anew(i.job, i.round, i.index, i.attempt, i.error::json, make_interval(secs => i.retry_in))
        ELSE planq_finish_step(i.job, i.round, i.index, i.attempt, false, NULL, i.error::json,
                               make_interval(secs => i.retry_in), false, NULL, NULL, NULL, NULL, i.unsure) END,
        i.job, i.round, p_lane, i.take_steps, i.take_stage, p_worker, p_seconds)
    FROM json_to_recordset(p_items) AS i (
        n int, job uuid, round int, index int, attempt int, error text, retry_in float8, unsure boolean, anew boolean,
        take_steps int, take_stage boolean
    )
$$;
