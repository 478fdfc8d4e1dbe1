-- Jobs: what callers and workers look up of them.

-- name: get_job
-- One job with the plan of its first round.
SELECT j.*, CASE WHEN j.open_questions > 0 THEN 'input_required' ELSE j.status END AS status, p.source AS plan_source, p.body AS plan_body, p.errors AS plan_errors
FROM jobs j LEFT JOIN plans p ON p.job_id = j.id AND p.round = 0
WHERE j.id = %(id)s AND j.tenant_id = %(tenant_id)s

-- name: job_by_key
-- The job that a tenant submitted under an idempotency key.
SELECT id, request_hash FROM jobs WHERE tenant_id = %(tenant_id)s AND idempotency_key = %(idempotency_key)s

-- name: select_jobs
-- The next jobs of a tenant, each with whether it fits a filter: upwards behind `after`, in some statuses, as job actions take them;
-- or downwards below `below`, the newest first, as lists do, where no statuses mean all. It returns `limit` jobs and no more: of
-- each pair of status and strategy the index knows the next ones, and ids bound the time, as that of a batch. For lists `roots`
-- leaves out child jobs, `message_flow` all but turns and tasks, and `asking` says which jobs that are `executing` are listed: those
-- that are shown as `input_required`, or the others. The metadata is returned where it is to be compared. Clocks may differ by a minute.
WITH span AS (
    SELECT CASE WHEN since IS NULL THEN '00000000-0000-0000-0000-000000000000'
           ELSE planq_first_id(since - interval '1 minute') END AS low,
           CASE WHEN until IS NULL THEN 'ffffffff-ffff-ffff-ffff-ffffffffffff'
           ELSE planq_first_id(until + interval '1 minute') END AS high
    FROM (
        SELECT greatest(%(made_after)s::timestamptz, max(b.created_at)) AS since,
               least(%(made_until)s::timestamptz, %(made_before)s::timestamptz, max(b.finished_at)) AS until
        FROM batches b WHERE b.id = %(batch_id)s::uuid AND b.tenant_id = %(tenant_id)s
    ) t
)
SELECT j.id, (NOT %(roots)s OR j.parent_job_id IS NULL)
       AND (%(made_until)s::timestamptz IS NULL OR j.created_at <= %(made_until)s)
       AND (%(is_paused)s::bool IS NULL OR (j.paused_at IS NOT NULL) = %(is_paused)s)
       AND (NOT %(has_failures)s OR j.status = 'failed' OR j.failed_steps > 0)
       AND (%(asking)s::bool IS NULL OR (planq_open_questions(j.tenant_id, j.id, j.root_job_id) IS NOT NULL) = %(asking)s) /* where */ AS fits,
       CASE WHEN %(with_metadata)s THEN j.metadata END AS metadata
FROM (
    (
        SELECT f.id FROM unnest(%(statuses)s::text[]) AS s (status) CROSS JOIN unnest(%(strategies)s::text[]) AS g (strategy)
        CROSS JOIN LATERAL (
            SELECT o.id FROM jobs o
            WHERE o.tenant_id = %(tenant_id)s AND o.status = s.status AND o.strategy = g.strategy
              AND o.id > %(after)s AND o.id >= (SELECT low FROM span) AND o.id < (SELECT high FROM span)
            ORDER BY o.id LIMIT %(limit)s
        ) f
        ORDER BY f.id LIMIT %(limit)s
    ) UNION ALL (
        SELECT f.id FROM unnest(%(statuses)s::text[]) AS s (status) CROSS JOIN unnest(%(strategies)s::text[]) AS g (strategy)
        CROSS JOIN LATERAL (
            SELECT o.id FROM jobs o
            WHERE o.tenant_id = %(tenant_id)s AND o.status = s.status AND o.strategy = g.strategy
              AND o.id < %(below)s AND o.id >= (SELECT low FROM span) AND o.id < (SELECT high FROM span)
              AND (NOT %(roots)s OR o.parent_job_id IS NULL)
              AND (NOT %(message_flow)s OR o.in_message_flow AND o.parent_job_id IS NULL)
              AND (%(asking)s::bool IS NULL OR (planq_open_questions(o.tenant_id, o.id, o.root_job_id) IS NOT NULL) = %(asking)s)
            ORDER BY o.id DESC LIMIT %(limit)s
        ) f
        ORDER BY f.id DESC LIMIT %(limit)s
    ) UNION ALL (
        SELECT o.id FROM jobs o
        WHERE o.tenant_id = %(tenant_id)s AND %(statuses)s::text[] IS NULL
          AND o.id < %(below)s AND o.id >= (SELECT low FROM span) AND o.id < (SELECT high FROM span)
          AND (NOT %(roots)s OR o.parent_job_id IS NULL)
          AND (NOT %(message_flow)s OR o.in_message_flow AND o.parent_job_id IS NULL)
        ORDER BY o.id DESC LIMIT %(limit)s
    )
) page JOIN jobs j ON j.id = page.id AND j.tenant_id = %(tenant_id)s
ORDER BY j.id

-- name: unfinished_jobs
-- How many jobs of a tenant are unfinished that came by themselves, not from another job, a message or a batch; of more
-- than `most` no more are counted.
SELECT count(*)::int AS n FROM (
    SELECT FROM jobs
    WHERE tenant_id = %(tenant_id)s AND planq_is_unfinished(status)
      AND parent_job_id IS NULL AND NOT in_message_flow AND batch_id IS NULL
    LIMIT %(most)s
) j

-- name: ended_jobs
-- Which of these jobs have ended: one query for everybody who waits.
SELECT id FROM jobs WHERE id = ANY (%(ids)s) AND status = ANY (%(statuses)s)

-- name: get_planned_steps
-- What the steps of all rounds are and how they ended, without their outputs; one step where `index` is given.
SELECT index, round, tool_name, pool, effect, recovery, status, attempt, releases, in_doubt, wanted, arguments, verbatim,
       is_known, error, (SELECT q.kind FROM questions q WHERE q.id = question_id) AS asks
FROM steps WHERE job_id = %(job_id)s AND tenant_id = %(tenant_id)s AND (%(index)s::int IS NULL OR index = %(index)s)
ORDER BY index

-- name: get_output
-- A step's output as it is stored; the status is null where the job has no such step.
SELECT s.status, s.output::text AS output, s.payload_hash
FROM jobs j LEFT JOIN steps s ON s.job_id = j.id AND s.index = %(index)s
WHERE j.id = %(job_id)s AND j.tenant_id = %(tenant_id)s

-- name: get_artifact
-- One version of an artifact as its tool produced it, as text, the newest where none is named; of a large one, or one of
-- bytes, the hash and size of its payload. With `message_flow` those alone that jobs of the message flow have made.
SELECT a.id, a.version, a.job_id, a.step_index, a.skill_id, a.body::text AS body, a.payload_hash, a.media_type, p.size AS bytes
FROM artifacts a LEFT JOIN payloads p ON p.tenant_id = a.tenant_id AND p.hash = a.payload_hash
WHERE a.tenant_id = %(tenant_id)s AND a.id = %(id)s AND (%(version)s::int IS NULL OR a.version = %(version)s)
  AND (NOT %(message_flow)s OR EXISTS (SELECT FROM jobs j WHERE j.id = a.job_id AND j.in_message_flow))
ORDER BY a.version DESC LIMIT 1

-- name: job_artifacts
-- What a job has made, without the bodies, in the order of its steps; one row without an artifact where it made none.
SELECT a.id, a.version, a.job_id, a.step_index, a.tool_name, a.skill_id, a.type, a.metadata, a.media_type, a.created_at,
       coalesce(p.size, octet_length(a.body::text)) AS bytes
FROM jobs j LEFT JOIN artifacts a ON a.job_id = j.id
LEFT JOIN payloads p ON p.tenant_id = a.tenant_id AND p.hash = a.payload_hash
WHERE j.id = %(job_id)s AND j.tenant_id = %(tenant_id)s
ORDER BY a.step_index, a.id, a.version

-- name: open_question
-- What a step asks about a call that was cut off, null where it asks nothing of that kind, and where its job stands; `index`
-- is null where the job has no such step.
SELECT j.status, s.index, q.id FROM jobs j
LEFT JOIN steps s ON s.job_id = j.id AND s.index = %(index)s
LEFT JOIN questions q ON q.id = s.question_id AND q.kind = 'outcome'
WHERE j.id = %(job_id)s AND j.tenant_id = %(tenant_id)s

-- name: last_settlement
-- What was said last of a call that was cut off; no row where nobody has said anything.
SELECT q.content ->> 'outcome' AS outcome
FROM jobs j JOIN questions q ON q.job_id = j.id AND q.step_index = %(index)s
WHERE j.id = %(job_id)s AND j.tenant_id = %(tenant_id)s AND q.kind = 'outcome' AND NOT q.is_spent
  AND q.status IN ('accepted', 'declined', 'cancelled')
ORDER BY q.id DESC LIMIT 1

-- name: holds_step
-- Whether an attempt still is the owner of its step: one row if so.
SELECT 1 AS held FROM steps
WHERE job_id = %(job_id)s AND round = %(round)s AND index = %(index)s AND attempt = %(attempt)s
  AND status = ANY (planq_step_running()) AND worker_id = %(worker_id)s

-- name: keep_traceback
-- Keeps where the exception of an attempt came from, while it owns its step, and of the step the last five: one row if so.
WITH kept AS (
    INSERT INTO tracebacks (job_id, round, index, attempt, text)
    SELECT job_id, round, index, attempt, %(text)s FROM steps
    WHERE job_id = %(job_id)s AND round = %(round)s AND index = %(index)s AND attempt = %(attempt)s
      AND status = ANY (planq_step_running()) AND worker_id = %(worker_id)s
    ON CONFLICT DO NOTHING
    RETURNING attempt
), forgotten AS (
    DELETE FROM tracebacks
    WHERE job_id = %(job_id)s AND round = %(round)s AND index = %(index)s AND attempt <= %(attempt)s - 5
)
SELECT attempt FROM kept

-- name: step_tracebacks
-- Where the exceptions of a step's attempts came from, the newest first; one row without an attempt where there are none.
SELECT j.id, t.attempt, t.text, t.created_at
FROM jobs j LEFT JOIN tracebacks t ON t.job_id = j.id AND t.index = %(index)s
WHERE j.id = %(job_id)s AND j.tenant_id = %(tenant_id)s
ORDER BY t.attempt DESC

-- name: job_model_calls
-- The first calls of a job to its models, the first one first; what was said is null where it was not kept, or is longer than
-- `most_bytes`. One row without a call where there are none.
SELECT c.id, c.round, c.purpose, c.model, c.attempts, c.latency_ms, c.input_tokens, c.output_tokens,
       c.cache_read_tokens, c.cache_write_tokens, c.cost_usd, c.error, c.created_at,
       octet_length(c.exchange::text) AS exchange_bytes,
       CASE WHEN octet_length(c.exchange::text) <= %(most_bytes)s THEN c.exchange END AS exchange
FROM jobs j LEFT JOIN LATERAL (
    SELECT * FROM model_calls m WHERE m.job_id = j.id ORDER BY m.id LIMIT %(most)s
) c ON true
WHERE j.id = %(job_id)s AND j.tenant_id = %(tenant_id)s
ORDER BY c.id

-- name: child_outcomes
-- How the child jobs stand of the steps %(first)s to %(last)s of a round, those of each step's last attempt, in the order
-- in which they were asked for.
SELECT c.parent_step_index, c.id, c.tenant_id, c.child_position, c.child_key, c.agent_name, c.action, c.status, c.output, c.answer,
       c.chained, c.error, c.finished_at, c.started_at IS NOT NULL AS has_begun,
       extract(epoch FROM coalesce(c.finished_at, planq_now()) - coalesce(c.started_at, c.created_at))::float8 AS seconds
FROM steps s CROSS JOIN LATERAL unnest(s.children) AS u (id) JOIN jobs c ON c.id = u.id
WHERE s.job_id = %(job_id)s AND s.round = %(round)s AND s.index BETWEEN %(first)s AND %(last)s
ORDER BY c.parent_step_index, c.child_position

-- name: view_jobs
-- What callers see of jobs; see planq_view_jobs.
SELECT * FROM planq_view_jobs(%(ids)s::uuid[], %(tenant_ids)s::text[], %(wanted)s::bool[], %(ended)s::text[], %(steps)s)

-- name: view_warnings
-- What callers are warned of in jobs of agents: the events of these kinds, as one JSON array for each job that has some.
SELECT e.job_id, json_agg(json_build_object('kind', e.kind, 'data', e.data) ORDER BY e.sequence) AS warnings
FROM unnest(%(ids)s::uuid[], %(tenant_ids)s::text[]) AS w (id, tenant_id)
CROSS JOIN LATERAL (
    SELECT job_id, kind, data, sequence FROM events
    WHERE job_id = w.id AND tenant_id = w.tenant_id AND kind = ANY (%(kinds)s::text[]) OFFSET 0
) e
GROUP BY e.job_id

-- name: view_children
-- The child jobs of each of these jobs, those of all rounds and attempts, as one JSON array, and what all jobs below it have used.
SELECT k.parent_job_id, k.children, u.* FROM (
    SELECT c.parent_job_id, c.tenant_id, json_agg(json_build_object(
               'id', c.id, 'step_index', c.parent_step_index, 'position', c.child_position, 'key', c.child_key,
               'agent', CASE WHEN c.agent_name IS NOT NULL
                        THEN json_build_object('name', c.agent_name, 'version', c.agent_version) END,
               'action', c.action, 'status', CASE
                   WHEN c.status = 'executing' AND planq_open_questions(c.tenant_id, c.id, c.root_job_id) IS NOT NULL
                   THEN 'input_required' ELSE c.status END,
               'outcome', planq_outcome(c.status, c.error))
           ORDER BY c.parent_round, c.parent_step_index, c.child_position, c.id)::text AS children
    FROM unnest(%(ids)s::uuid[], %(tenant_ids)s::text[]) AS w (id, tenant_id)
    CROSS JOIN LATERAL (
        SELECT id, tenant_id, root_job_id, parent_job_id, parent_round, parent_step_index, child_position, child_key, agent_name,
               agent_version, action, status, error
        FROM jobs WHERE parent_job_id = w.id AND tenant_id = w.tenant_id OFFSET 0
    ) c
    GROUP BY c.parent_job_id, c.tenant_id
) k CROSS JOIN LATERAL planq_usage(k.parent_job_id, false) u

-- name: job_waits
-- One reading of all that says why jobs wait (shared/subjects/jobs/waiting.py): where each stands, the oldest question of it or of
-- a job below it, the first open steps of its round, and what the live workers of each pool have to do.
SELECT j.id, j.priority, CASE WHEN q.questions IS NOT NULL THEN 'input_required' ELSE j.status END AS status, j.error, j.paused_at, j.run_at, planq_now() AS now,
    j.stage_worker IS NOT NULL AS is_claimed, (
        SELECT CASE WHEN %(names_workers)s THEN w.name ELSE 'worker ' || right(w.id::text, 6) END
        FROM workers w WHERE w.id = j.stage_worker
    ) AS stage_worker_name,
    CASE WHEN j.stage_retry IS NOT NULL
        THEN planq_present_retry(j.stage_retry, j.status, j.round, j.resumes)->>'error' END AS stage_error,
    CASE WHEN j.conversation_id IS NOT NULL AND j.parent_job_id IS NULL THEN (
        SELECT t.id FROM jobs t
        WHERE t.tenant_id = %(tenant_id)s AND t.conversation_id = j.conversation_id AND t.parent_job_id IS NULL AND t.id < j.id
          AND planq_is_unfinished(t.status)
        ORDER BY t.id DESC LIMIT 1
    ) END AS turn_before, CASE WHEN j.batch_id IS NOT NULL THEN (
        SELECT d.model FROM deferred_calls d
        WHERE d.job_id = j.id AND d.tenant_id = %(tenant_id)s AND d.status IN ('waiting', 'sent')
    ) END AS deferred_to, q.questions AS questions,
    o.created_at AS asked_at, o.asked_ids, o.tool_name AS asking_tool, s.steps AS open_steps, l.pools
FROM unnest(%(job_ids)s::uuid[]) AS g (id)
CROSS JOIN LATERAL (SELECT * FROM jobs WHERE id = g.id AND tenant_id = %(tenant_id)s OFFSET 0) j
CROSS JOIN LATERAL (
    SELECT CASE WHEN j.status = 'executing'
        THEN planq_open_questions(j.tenant_id, j.id, j.root_job_id) END AS questions
) q
LEFT JOIN LATERAL (
    SELECT o.created_at, o.asked_ids, a.tool_name FROM questions o
    LEFT JOIN steps a ON a.job_id = o.job_id AND a.index = o.step_index AND a.tenant_id = %(tenant_id)s
    WHERE o.id = (q.questions->0->>'id')::uuid AND o.tenant_id = %(tenant_id)s
) o ON true
CROSS JOIN LATERAL (
    SELECT coalesce(json_agg(to_json(f)), '[]')::text AS steps FROM (
        SELECT s.index, s.tool_name, s.status, s.pool, s.run_at, s.wake_at, s.started_at, s.tool_away_since, s.error,
               CASE WHEN s.status = ANY (planq_step_waiting()) THEN s.open_children END AS open_children,
               CASE WHEN s.status = ANY (planq_step_running()) THEN (
                   SELECT CASE WHEN %(names_workers)s THEN w.name ELSE 'worker ' || right(w.id::text, 6) END
                   FROM workers w WHERE w.id = s.worker_id) END AS worker,
               CASE WHEN s.open_children > 0 THEN (
                   SELECT json_build_object('id', c.id, 'status', c.status) FROM jobs c
                   WHERE c.id = ANY (s.children) AND c.tenant_id = %(tenant_id)s AND planq_is_unfinished(c.status)
                   ORDER BY c.id LIMIT 1
               ) END AS child
        FROM steps s WHERE s.job_id = j.id AND s.tenant_id = %(tenant_id)s AND s.round = j.round
          AND s.status = ANY (planq_step_movable())
        ORDER BY s.index LIMIT 50
    ) f
) s
CROSS JOIN LATERAL (
    SELECT coalesce(json_object_agg(pool, json_build_object('in_flight', n.in_flight, 'capacity', n.capacity)), '{}') AS pools
    FROM (
        SELECT u.pool, sum(w.in_flight)::int AS in_flight, sum(w.capacity)::int AS capacity
        FROM workers w CROSS JOIN LATERAL unnest(w.pools) AS u (pool)
        WHERE w.heartbeat_at > planq_now() - make_interval(secs => w.lease_seconds)
          AND coalesce(w.only_priority, j.priority) = j.priority
        GROUP BY u.pool
    ) n
) l

-- name: count_jobs
-- How many of a tenant's jobs that no other job has made stand in each status; of more than `most` no more are counted.
-- A job that asks, or one below which a job asks, is counted as `input_required`.
SELECT s.status, count(*)::int AS n
FROM unnest(%(statuses)s::text[]) AS s (status)
CROSS JOIN LATERAL (
    SELECT FROM jobs j WHERE j.tenant_id = %(tenant_id)s AND j.status = s.status AND j.parent_job_id IS NULL
      AND CASE WHEN s.status = 'executing' THEN NOT EXISTS (
          SELECT FROM questions q WHERE q.tenant_id = %(tenant_id)s AND q.root_job_id = j.id AND q.status = 'open'
      ) ELSE true END
    ORDER BY j.strategy, j.id LIMIT %(most)s  -- that of an index: for a status that few have, the table would be read
) f
GROUP BY 1
UNION ALL
SELECT 'input_required', count(*)::int FROM (
    SELECT DISTINCT q.root_job_id FROM questions q
    WHERE q.tenant_id = %(tenant_id)s AND q.status = 'open' LIMIT %(most)s
) f

-- name: find_by_id
-- What of a tenant has an id: a job, a conversation, a batch, a schedule, a question, a job action. A question tells its job.
SELECT 'job' AS kind, id, NULL::uuid AS job_id FROM jobs WHERE id = %(id)s AND tenant_id = %(tenant_id)s
UNION ALL SELECT 'conversation', id, NULL FROM conversations WHERE id = %(id)s AND tenant_id = %(tenant_id)s
UNION ALL SELECT 'batch', id, NULL FROM batches WHERE id = %(id)s AND tenant_id = %(tenant_id)s
UNION ALL SELECT 'schedule', id, last_job_id FROM schedules WHERE id = %(id)s AND tenant_id = %(tenant_id)s
UNION ALL SELECT 'question', id, job_id FROM questions WHERE id = %(id)s AND tenant_id = %(tenant_id)s
UNION ALL SELECT 'job_action', id, NULL FROM job_actions WHERE id = %(id)s AND tenant_id = %(tenant_id)s

-- name: find_lines
-- The lines with a `custom_id` in a tenant's newest batches, the newest first; of each batch the index knows the one.
SELECT l.batch_id, l.line, l.custom_id, l.job_id
FROM (SELECT id FROM batches WHERE tenant_id = %(tenant_id)s ORDER BY id DESC LIMIT %(among)s) b
CROSS JOIN LATERAL (
    SELECT * FROM batch_lines WHERE batch_id = b.id AND custom_id = %(custom_id)s AND tenant_id = %(tenant_id)s OFFSET 0
) l
ORDER BY l.batch_id DESC LIMIT %(limit)s

-- name: running_work
-- What of a tenant's runs on which of the workers that are alive, at most `most` steps and `most` stages of each.
SELECT w.id AS worker_id, r.job_id, r.step_index, r.what, r.since
FROM workers w
CROSS JOIN LATERAL (
    (SELECT s.job_id, s.index AS step_index, s.tool_name AS what, s.started_at AS since FROM steps s
     WHERE s.worker_id = w.id AND s.status = ANY (planq_step_running()) AND s.tenant_id = %(tenant_id)s LIMIT %(most)s)
    UNION ALL
    (SELECT j.id, NULL, j.status, NULL FROM jobs j
     WHERE j.stage_worker = w.id AND j.tenant_id = %(tenant_id)s LIMIT %(most)s)
) r
WHERE w.heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s)
ORDER BY r.since

-- name: waiting_work
-- How much of a tenant's waits for a worker, by pool and priority, and since when the oldest does: steps that are ready and
-- not held, and stages. Of either no more are counted than `most`. The times bound what an index is asked for: a history has
-- thousands of steps that wait for days.
WITH waiting AS (
    (SELECT s.pool, j.priority, s.run_at FROM steps s JOIN jobs j ON j.id = s.job_id
     WHERE s.status = ANY (planq_step_idle()) AND s.status = ANY (planq_step_ready()) AND s.tenant_id = %(tenant_id)s
       AND s.wake_at < planq_now() + planq_wake_pause(100) AND s.run_at <= planq_now()
       AND j.status = 'executing' AND j.paused_at IS NULL
     LIMIT %(most)s)
    UNION ALL
    (SELECT 'io', priority, run_at FROM jobs
     WHERE planq_is_unfinished(status)
       AND status IN ('queued', 'planning', 'responding') AND tenant_id = %(tenant_id)s AND stage_worker IS NULL
       AND wake_at < planq_now() + planq_wake_pause(100) AND run_at <= planq_now() AND paused_at IS NULL
     LIMIT %(most)s)
)
SELECT pool, priority, count(*)::int AS n, min(run_at) AS oldest_at FROM waiting GROUP BY 1, 2 ORDER BY 1, 2
