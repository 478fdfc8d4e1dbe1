-- Job actions: asked for, looked at, stopped; and the jobs that a filter selects.

-- name: begin_action
-- Stores an action, unless its tenant has sent one under the same idempotency key.
INSERT INTO job_actions (id, tenant_id, act, filter, repeat_unsafe, after_job, idempotency_key, request_hash)
VALUES (%(id)s, %(tenant_id)s, %(act)s, %(filter)s, %(repeat_unsafe)s, %(after)s, %(idempotency_key)s, %(request_hash)s)
ON CONFLICT (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING id

-- name: action_by_key
-- The action that a tenant has sent under an idempotency key.
SELECT id, request_hash FROM job_actions WHERE tenant_id = %(tenant_id)s AND idempotency_key = %(idempotency_key)s

-- name: forget_actions
-- Removes a tenant's oldest actions that ended long ago.
DELETE FROM job_actions WHERE tenant_id = %(tenant_id)s AND id IN (
    SELECT id FROM job_actions
    WHERE tenant_id = %(tenant_id)s AND id < planq_first_id(planq_now() - make_interval(days => %(days)s))
      AND status <> 'running'
    ORDER BY id LIMIT %(limit)s
)

-- name: get_action
-- One action of a tenant.
SELECT * FROM job_actions WHERE id = %(id)s AND tenant_id = %(tenant_id)s

-- name: list_actions
-- A tenant's newest actions.
SELECT * FROM job_actions WHERE tenant_id = %(tenant_id)s AND id < %(below)s ORDER BY id DESC LIMIT %(limit)s

-- name: stop_action
-- Lets an action look at no further job; no row where it is over.
UPDATE job_actions SET status = 'cancelled', finished_at = planq_clock()
WHERE id = %(id)s AND tenant_id = %(tenant_id)s AND status = 'running'
RETURNING id

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
       AND (%(asking)s::bool IS NULL OR planq_is_asking(j) = %(asking)s) /* where */ AS fits,
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
              AND (%(asking)s::bool IS NULL OR planq_is_asking(o) = %(asking)s)
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

-- name: sweep_look/actions
SELECT 'actions', NULL, NULL WHERE EXISTS (SELECT FROM job_actions WHERE status = 'running')
