-- End: what follows from the end of a job, for those whom it concerns.
--
-- planq_serve_ends   serves these with it, each once
--
-- Whoever waits for a job is one of three: the step that made it, the conversation whose turn it is, the batch whose line it is. Each
-- is served in a commit of its own, for it locks more than the job, and its fault is to undo no end. That commit marks
-- the job with `is_joined`: who dies in between has lost nothing, and a repeat finds nothing to do. Who ends a job for
-- which others wait serves them at once, but for lines, which a sweep serves many in one commit; what was missed
-- a sweep finds by the mark (unserved_ends in queries/sweep.sql). A job that is resumed loses the mark, and is served anew with its
-- next end. Deliveries are written in the commit of the end, which is marked with `is_untold` where that failed.

-- EndsServed: serves whoever waits for the first of `p_jobs`; several are lines of batches. Returns {applied} and what it led to:
-- of a parent, with an `index`, what planq_finish_step returns; the next turn as {next, agent, tenant}.
CREATE FUNCTION planq_serve_ends(p_jobs uuid[]) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    j record;
    v_served json;
BEGIN
    SELECT parent_job_id, conversation_id, batch_id, is_untold INTO j FROM jobs WHERE id = p_jobs[1];
    v_served := CASE
        WHEN j.parent_job_id IS NOT NULL THEN planq_child_ended(p_jobs[1])
        WHEN j.conversation_id IS NOT NULL THEN planq_settle_turn(p_jobs[1])
        WHEN j.batch_id IS NOT NULL THEN planq_settle_lines(p_jobs)
        ELSE json_build_object('applied', false) END;
    -- The job's row is locked last: before it comes that of a conversation or batch. Without the mark a trigger writes the
    -- deliveries, or sets the mark again.
    IF j.is_untold THEN
        UPDATE jobs SET is_untold = false WHERE id = p_jobs[1] AND is_untold AND planq_is_ended(status);
        IF FOUND AND NOT (v_served->>'applied')::boolean AND EXISTS (SELECT FROM jobs WHERE id = p_jobs[1] AND NOT is_untold) THEN
            RETURN json_build_object('applied', true);
        END IF;
    END IF;
    RETURN v_served;
END $$;
