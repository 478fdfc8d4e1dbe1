-- StepClaimed: takes a ready step by compare-and-set and brings the outputs that it references, of large ones what is
-- known of them; no row, no work.
WITH claimed AS (
    UPDATE steps s SET
        status = 'running',
        attempt = s.attempt + 1,
        worker_id = %(worker_id)s,
        started_at = coalesce(s.started_at, clock_timestamp()),
        deadline = now() + make_interval(secs => s.timeout_seconds),
        wake_at = NULL,
        wakes = 0
    FROM jobs j
    WHERE s.job_id = %(job_id)s AND s.round = %(round)s AND s.index = %(index)s AND s.status = 'ready'
      AND s.run_at <= now() AND j.id = s.job_id AND j.status IN ('executing', 'input_required')
      AND j.paused_at IS NULL
    RETURNING s.job_id, s.round, s.index, s.tenant_id, s.tool_name, s.effect, s.lane, s.arguments, s.inputs, s.attempt,
              s.retries, s.recovery, s.unsure, s.wanted, s.worker_losses, s.releases, s.timeout_seconds, j.user_id,
              j.trace_id, j.conversation_id, j.deadline - now() AS time_left
), told AS (
    INSERT INTO events (tenant_id, job_id, kind, data)
    SELECT tenant_id, job_id, 'step_started',
           json_build_object('round', round, 'index', index, 'attempt', attempt, 'tool_name', tool_name)
    FROM claimed
)
SELECT c.*, (
    SELECT json_object_agg(i.index, json_build_object('output', i.output, 'payload_hash', encode(i.payload_hash, 'hex'),
                                                      'output_bytes', i.output_bytes, 'excerpts', i.excerpts))
    FROM steps i
    WHERE i.job_id = c.job_id AND i.round = c.round AND i.index = ANY (c.inputs)
) AS outputs
FROM claimed c
