-- The broker did not take these wake-ups (job ids of stages; a JSON array of {job_id, round, index} for steps): they are
-- due again at once, as if they had never been published; a worker that hears nothing of them is not deaf (see
-- unanswered_wakes). What has been claimed meanwhile has no wake_at.
WITH stages AS (
    UPDATE jobs SET wakes = 0, wake_at = planq_now()
    WHERE id = ANY (%(stages)s) AND wake_at IS NOT NULL
)
UPDATE steps s SET wakes = 0, wake_at = planq_now()
FROM json_to_recordset(%(steps)s) AS r (job_id uuid, round int, index int)
WHERE s.job_id = r.job_id AND s.round = r.round AND s.index = r.index AND s.status = 'ready' AND s.wake_at IS NOT NULL
