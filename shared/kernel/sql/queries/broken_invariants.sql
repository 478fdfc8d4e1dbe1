-- name: broken_invariants
-- What must never be, as far as several rows or the time show it: one row for each job (and step) that breaks an
-- invariant; none in a healthy database. What one row must hold, functions/invariants.sql asserts.
WITH unfinished AS (
    SELECT * FROM jobs WHERE planq_is_unfinished(status)
), counted AS (
    SELECT j.id,
           count(s.index) FILTER (WHERE s.status = ANY (planq_step_unfinished()))::int AS open_steps,
           count(s.index) FILTER (WHERE s.status = 'failed' AND j.on_failure <> 'record' AND NOT s.is_known)::int AS failed_steps,
           min(s.index) FILTER (WHERE s.status = 'failed' AND j.on_failure IN ('fail', 'answer') AND NOT s.is_known) AS halt_index,
           count(s.index) FILTER (WHERE s.status = ANY (planq_step_movable()))::int AS movable,
           count(s.index) FILTER (WHERE s.status = ANY (planq_step_running())
               OR (s.status = ANY (planq_step_ready()) AND s.wake_at IS NOT NULL))::int AS out_steps,
           count(s.index) FILTER (WHERE s.status = ANY (planq_step_ready()) AND s.wake_at IS NULL)::int AS held_steps,
           count(s.index) FILTER (WHERE s.status = ANY (planq_step_waiting()) AND s.question_id IS NOT NULL)::int AS questions
    FROM unfinished j LEFT JOIN steps s ON s.job_id = j.id AND s.round = j.round
    GROUP BY j.id
)
SELECT 'running_without_lease' AS invariant, s.job_id, s.index AS step_index
FROM steps s LEFT JOIN workers w
  ON w.id = s.worker_id AND w.heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s)
WHERE s.status = ANY (planq_step_running()) AND w.id IS NULL AND NOT (
    s.effect = 'unsafe' AND s.recovery <> 'fail'
    AND s.deadline + make_interval(secs => %(margin_seconds)s + s.in_doubt::int * s.timeout_seconds) > planq_now()
    AND EXISTS (SELECT FROM workers g WHERE g.id = s.worker_id AND g.heartbeat_at > 'epoch'))
UNION ALL
-- Nobody waits for a model beyond the end of his job; a pause moves that end, and never the time of the next try.
SELECT 'stage_waits_in_vain', id, NULL FROM unfinished
WHERE stage_retry IS NOT NULL AND stage_worker IS NULL AND status IN ('planning', 'responding') AND run_at > expires_at
UNION ALL
SELECT 'executing_without_cause', j.id, NULL FROM unfinished j JOIN counted c ON c.id = j.id
WHERE j.status = 'executing' AND c.movable = 0
UNION ALL
-- A step that waits for child jobs has one that has not ended, or of whose end it was not notified.
SELECT 'waiting_for_no_child', s.job_id, s.index FROM steps s
WHERE s.status = ANY (planq_step_waiting()) AND s.waits_for IS NOT NULL AND NOT s.joined AND NOT EXISTS (
    SELECT FROM jobs c WHERE c.id = ANY (s.children)
      AND (NOT planq_is_ended(c.status) OR NOT c.is_joined))
UNION ALL
SELECT 'open_children_differ', s.job_id, s.index FROM steps s
WHERE s.status = ANY (planq_step_waiting()) AND s.waits_for IS NOT NULL AND NOT s.joined AND s.open_children <> (
    SELECT count(*) FROM jobs c WHERE c.id = ANY (s.children)
      AND (NOT planq_is_ended(c.status) OR NOT c.is_joined))
UNION ALL
SELECT 'too_many_children', s.job_id, s.index FROM steps s
WHERE s.status = ANY (planq_step_movable()) AND s.max_parallel < (
    SELECT count(*) FROM jobs c WHERE c.id = ANY (s.children) AND c.run_at <> planq_never()
      AND NOT planq_is_ended(c.status))
UNION ALL
-- Where children wait in vain: fewer have been begun than may be, no parent is to be notified of an end, and some are held back.
SELECT 'child_held_in_vain', s.job_id, s.index FROM steps s
WHERE s.status = ANY (planq_step_waiting()) AND s.waits_for IS NOT NULL AND NOT s.joined AND EXISTS (
    SELECT FROM jobs c WHERE c.id = ANY (s.children) AND c.status = 'queued' AND c.run_at = planq_never()
) AND s.max_parallel > (
    SELECT count(*) FROM jobs c WHERE c.id = ANY (s.children) AND c.run_at <> planq_never()
      AND (NOT planq_is_ended(c.status) OR NOT c.is_joined))
UNION ALL
-- Whoever an end concerns is served with it, by a sweep at the latest.
SELECT 'end_not_served', id, NULL FROM jobs
WHERE (is_untold OR NOT is_joined AND coalesce(parent_job_id, conversation_id, batch_id) IS NOT NULL)
  AND planq_is_ended(status) AND finished_at < planq_now() - interval '1 minute'
UNION ALL
SELECT 'child_without_parent', c.id, NULL FROM unfinished c
WHERE c.parent_job_id IS NOT NULL AND NOT EXISTS (
    SELECT FROM steps s JOIN unfinished p ON p.id = s.job_id AND p.round = s.round
    WHERE s.job_id = c.parent_job_id AND s.round = c.parent_round AND s.index = c.parent_step_index
      AND s.status = ANY (planq_step_movable()) AND c.id = ANY (s.children))
UNION ALL
SELECT 'family_differs', c.id, NULL FROM jobs c JOIN jobs p ON p.id = c.parent_job_id
WHERE c.depth <> p.depth + (c.agent_name IS NOT NULL)::int OR c.root_job_id IS DISTINCT FROM coalesce(p.root_job_id, p.id) OR c.id <= p.id
   OR c.tenant_id <> p.tenant_id
UNION ALL
-- One turn of a conversation has begun and not ended, the one that it names as active; all others are held.
SELECT 'turn_out_of_turn', j.id, NULL FROM unfinished j JOIN conversations c ON c.id = j.conversation_id
WHERE j.parent_job_id IS NULL AND j.run_at <> planq_never() AND c.active_job_id IS DISTINCT FROM j.id
UNION ALL
SELECT 'turn_held_in_vain', j.id, NULL FROM unfinished j JOIN conversations c ON c.id = j.conversation_id
WHERE j.parent_job_id IS NULL AND j.run_at = planq_never() AND c.active_job_id IS NULL
UNION ALL
SELECT 'active_turn_differs', c.active_job_id, NULL FROM conversations c
WHERE c.active_job_id IS NOT NULL AND NOT EXISTS (
    SELECT FROM jobs j WHERE j.id = c.active_job_id AND j.conversation_id = c.id AND j.parent_job_id IS NULL
      AND NOT j.is_joined)
UNION ALL
SELECT 'line_differs', l.job_id, NULL FROM batch_lines l LEFT JOIN jobs j ON j.id = l.job_id
WHERE l.status = 'admitted' AND coalesce(j.is_joined, true)
   OR l.status IN ('completed', 'failed') AND j.is_joined AND l.status <> j.status
UNION ALL
-- Only a worker in quarantine claims them, and not for ever.
SELECT 'suspected_too_long', s.job_id, s.index FROM suspects n
JOIN steps s ON s.job_id = n.job_id AND s.round = n.round AND s.index = n.index AND s.attempt = n.attempt
WHERE s.status = ANY (planq_step_ready()) AND n.due_at IS NOT NULL AND s.run_at > n.due_at + 2 * planq_quarantine()
UNION ALL
-- The sweeper looks at what it may publish every ten minutes at the latest (planq_take_due_wakes), unless no worker has its tool.
SELECT 'woken_too_late', s.job_id, s.index FROM steps s
WHERE s.status = ANY (planq_step_ready()) AND s.tool_away_since IS NULL
  AND s.wake_at > greatest(s.run_at, planq_now()) + interval '11 minutes'
UNION ALL
SELECT 'woken_too_late', id, NULL FROM unfinished
WHERE status IN ('queued', 'planning', 'responding') AND wake_at > greatest(run_at, planq_now()) + interval '11 minutes'
UNION ALL
SELECT 'counter_differs', j.id, NULL FROM unfinished j JOIN counted c ON c.id = j.id
WHERE j.status = 'executing' AND (j.open_steps, j.failed_steps) <> (c.open_steps, c.failed_steps)
UNION ALL
-- What is ready and not out is held and counted: it follows as places come free, by the commits that free them.
SELECT 'window_differs', j.id, NULL FROM unfinished j JOIN counted c ON c.id = j.id
WHERE j.status = 'executing'
  AND (coalesce(j.out_steps, c.out_steps), j.held_steps) <> (c.out_steps, c.held_steps)
UNION ALL
SELECT 'halt_differs', j.id, NULL FROM unfinished j JOIN counted c ON c.id = j.id
WHERE j.status = 'executing' AND j.halt_index IS DISTINCT FROM c.halt_index
UNION ALL
-- Nothing begins that the sequence would not have begun.
SELECT 'open_after_a_failure', j.id, s.index FROM unfinished j JOIN steps s ON s.job_id = j.id AND s.round = j.round
WHERE s.status = ANY (planq_step_unstarted()) AND s.index > j.halt_index AND NOT s.joined
UNION ALL
SELECT 'questions_differ', j.id, NULL FROM unfinished j JOIN counted c ON c.id = j.id
WHERE j.open_questions <> c.questions
UNION ALL
-- A question is open exactly as long as the step waits that asked it; one that was asked ahead, until its step has ended.
SELECT 'question_open_in_vain', q.job_id, q.step_index FROM questions q
WHERE q.status = 'open' AND NOT EXISTS (
    SELECT FROM steps s WHERE s.job_id = q.job_id AND s.index = q.step_index
      AND CASE WHEN q.waiting_since IS NULL THEN s.is_asked_ahead AND s.finished_at IS NULL
               ELSE s.status = ANY (planq_step_waiting()) AND s.question_id = q.id END)
UNION ALL
SELECT 'question_closed_too_soon', s.job_id, s.index FROM steps s
WHERE s.status = ANY (planq_step_waiting()) AND s.question_id IS NOT NULL AND NOT EXISTS (
    SELECT FROM questions q WHERE q.id = s.question_id AND q.status = 'open')
UNION ALL
-- Where failures are recorded, a step waits only until those before it have ended, and needs the outputs alone.
SELECT 'pending_differs', s.job_id, s.index FROM steps s JOIN jobs j ON j.id = s.job_id
WHERE s.status = ANY (planq_step_pending()) AND s.pending <> (
    SELECT count(*) FROM steps d
    WHERE d.job_id = s.job_id AND d.round = s.round AND d.index = ANY (s.depends_on) AND d.status <> 'succeeded'
      AND (j.on_failure IN ('fail', 'answer') OR d.status = ANY (planq_step_unfinished()))
)
UNION ALL
SELECT 'pending_for_ever', s.job_id, s.index FROM steps s JOIN jobs j ON j.id = s.job_id
WHERE s.status = ANY (planq_step_pending()) AND EXISTS (
    SELECT FROM steps d
    WHERE d.job_id = s.job_id AND d.round = s.round AND d.status IN ('failed', 'skipped', 'cancelled')
      AND d.index = ANY (CASE WHEN j.on_failure IN ('fail', 'answer') THEN s.depends_on ELSE s.inputs END)
)
UNION ALL
SELECT 'ended_with_open_steps', j.id, s.index FROM steps s JOIN jobs j ON j.id = s.job_id
WHERE s.status = ANY (planq_step_unfinished())
  AND (j.status <> 'executing' OR s.round <> j.round)
UNION ALL
SELECT 'payload_missing', s.job_id, s.index FROM steps s
WHERE s.payload_hash IS NOT NULL AND NOT EXISTS (
    SELECT FROM payloads p WHERE p.tenant_id = s.tenant_id AND p.hash = s.payload_hash)
UNION ALL
SELECT 'payload_missing', a.job_id, a.step_index FROM artifacts a
WHERE a.payload_hash IS NOT NULL AND NOT EXISTS (
    SELECT FROM payloads p WHERE p.tenant_id = a.tenant_id AND p.hash = a.payload_hash)
UNION ALL
-- What is deleted with a job by a trigger is inserted for no job that is gone.
SELECT 'part_of_no_job', r.job_id, NULL FROM (
    SELECT job_id FROM steps UNION ALL SELECT job_id FROM plans UNION ALL SELECT job_id FROM events
    UNION ALL SELECT job_id FROM model_calls
) r LEFT JOIN jobs j ON j.id = r.job_id WHERE j.id IS NULL
UNION ALL
SELECT 'model_calls_differ', j.id, NULL FROM jobs j
WHERE j.model_calls <> (SELECT count(*) FROM model_calls c WHERE c.job_id = j.id AND NOT c.is_retried)
UNION ALL
SELECT 'usage_differs', j.id, NULL FROM jobs j
WHERE (j.input_tokens, j.output_tokens, j.cache_read_tokens, j.cache_write_tokens, coalesce(j.cost_usd, 0)) <> (
    SELECT coalesce(sum(c.input_tokens), 0), coalesce(sum(c.output_tokens), 0),
        coalesce(sum(c.cache_read_tokens), 0), coalesce(sum(c.cache_write_tokens), 0), coalesce(sum(c.cost_usd), 0)
        + (SELECT coalesce(sum(s.cost_usd), 0) FROM steps s WHERE s.job_id = j.id)
    FROM model_calls c WHERE c.job_id = j.id)
UNION ALL
SELECT 'recorded_twice', c.job_id, NULL FROM model_calls c
WHERE c.call_id IS NOT NULL GROUP BY c.job_id, c.call_id HAVING count(*) > 1
UNION ALL
SELECT 'succeeded_twice', e.job_id, (e.data->>'index')::int FROM events e
WHERE e.kind = 'step_succeeded'
GROUP BY e.job_id, e.data->>'round', (e.data->>'index')::int HAVING count(*) > 1
UNION ALL
SELECT 'begun_after_success', e.job_id, (e.data->>'index')::int FROM events e
WHERE e.kind IN ('step_started', 'step_succeeded')
GROUP BY e.job_id, e.data->>'round', (e.data->>'index')::int
HAVING max(e.sequence) FILTER (WHERE e.kind = 'step_started')
     > min(e.sequence) FILTER (WHERE e.kind = 'step_succeeded')
LIMIT %(limit)s
