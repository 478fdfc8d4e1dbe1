-- What must never be: one row for each job (and step) that breaks an invariant; none in a healthy database.
WITH unfinished AS (
    SELECT * FROM jobs WHERE status IN ('queued', 'planning', 'executing', 'input_required', 'responding')
), counted AS (
    SELECT j.id,
           count(s.index) FILTER (WHERE s.status IN ('pending', 'ready', 'running', 'waiting'))::int AS open_steps,
           count(s.index) FILTER (WHERE s.status = 'failed')::int AS failed_steps,
           count(s.index) FILTER (WHERE s.status IN ('ready', 'running', 'waiting'))::int AS movable,
           count(s.index) FILTER (WHERE s.status = 'waiting' AND s.question IS NOT NULL)::int AS questions
    FROM unfinished j LEFT JOIN steps s ON s.job_id = j.id AND s.round = j.round
    GROUP BY j.id
)
SELECT 'running_without_lease' AS invariant, s.job_id, s.index AS step_index
FROM steps s LEFT JOIN workers w
  ON w.id = s.worker_id AND w.heartbeat_at > now() - make_interval(secs => %(lease_seconds)s)
WHERE s.status = 'running' AND w.id IS NULL
UNION ALL
SELECT 'stage_without_cause', id, NULL FROM unfinished
WHERE status IN ('queued', 'planning', 'responding') AND stage_worker IS NULL AND wake_at IS NULL
UNION ALL
SELECT 'executing_without_cause', j.id, NULL FROM unfinished j JOIN counted c ON c.id = j.id
WHERE j.status IN ('executing', 'input_required') AND c.movable = 0
UNION ALL
SELECT 'step_without_cause', s.job_id, s.index FROM steps s
WHERE s.status IN ('ready', 'waiting') AND s.wake_at IS NULL
UNION ALL
SELECT 'counter_differs', j.id, NULL FROM unfinished j JOIN counted c ON c.id = j.id
WHERE j.status IN ('executing', 'input_required') AND (j.open_steps, j.failed_steps) <> (c.open_steps, c.failed_steps)
UNION ALL
SELECT 'questions_differ', j.id, NULL FROM unfinished j JOIN counted c ON c.id = j.id
WHERE j.open_questions <> c.questions OR (j.status = 'input_required') <> (c.questions > 0)
UNION ALL
SELECT 'pending_differs', s.job_id, s.index FROM steps s
WHERE s.status = 'pending' AND s.pending <> (
    SELECT count(*) FROM steps d
    WHERE d.job_id = s.job_id AND d.round = s.round AND d.index = ANY (s.depends_on) AND d.status <> 'succeeded'
)
UNION ALL
SELECT 'ended_with_open_steps', j.id, s.index FROM steps s JOIN jobs j ON j.id = s.job_id
WHERE s.status IN ('pending', 'ready', 'running', 'waiting') AND j.status IN ('completed', 'failed', 'cancelled')
UNION ALL
SELECT 'model_calls_differ', j.id, NULL FROM jobs j
WHERE j.model_calls <> (SELECT count(*) FROM model_calls c WHERE c.job_id = j.id)
UNION ALL
SELECT 'succeeded_twice', e.job_id, (e.data->>'index')::int FROM events e
WHERE e.kind = 'step_succeeded'
GROUP BY e.job_id, e.data->>'round', (e.data->>'index')::int HAVING count(*) > 1
LIMIT %(limit)s
