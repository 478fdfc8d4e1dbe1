-- StageClaimed: takes the PLAN or RESPOND stage by compare-and-set; no row when it is taken or over. The deadline is
-- for a worker that lives but has lost the claim, because the answer to this very statement got lost, say.
WITH claimed AS (
    UPDATE jobs SET
        status = CASE status WHEN 'queued' THEN 'planning' ELSE status END,
        stage_worker = %(worker_id)s,
        stage_attempt = stage_attempt + 1,
        started_at = coalesce(started_at, clock_timestamp()),
        -- The time in the queue is over; from here on the whole life counts.
        expires_at = CASE WHEN started_at IS NULL AND resumes = 0
            THEN expires_at + make_interval(secs => greatest(0, (limits->>'job_timeout_seconds')::float8
                                                                - (limits->>'queue_timeout_seconds')::float8))
            ELSE expires_at END,
        deadline = now() + make_interval(secs => %(timeout_seconds)s),
        wake_at = NULL,
        wakes = 0
    WHERE id = %(job_id)s AND stage_worker IS NULL AND run_at <= now() AND paused_at IS NULL AND status = ANY (%(statuses)s)
    RETURNING *
), told AS (
    INSERT INTO events (tenant_id, job_id, kind, data)
    SELECT tenant_id, id, 'stage_started', json_build_object('stage', status, 'attempt', stage_attempt) FROM claimed
)
SELECT c.id, c.tenant_id, c.status, c.round, c.strategy, c.model, c.input, c.tools, c.limits, c.stage_attempt,
       p.source AS plan_source, p.body AS plan_body, p.errors AS plan_errors, p.reuse AS plan_reuse, c.forked_from
FROM claimed c LEFT JOIN plans p ON p.job_id = c.id AND p.round = c.round
