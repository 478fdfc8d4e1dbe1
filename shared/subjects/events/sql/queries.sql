-- The event log, read in the order of its transactions; see shared/subjects/events/position.py. What is read lies below
-- every transaction that is still open, in the snapshot of the statement itself. What is shown as `xid` is a text, whose order
-- is another one: that of the events is always asked for by the table's name.

-- name: events_of_jobs
-- The events of tenants' jobs, of each after a position and up to another one, the first so many of them. `n` is the place of
-- the job in the lists, from 1.
SELECT a.n::int AS n, e.xid::text, e.sequence, e.job_id, e.kind, e.data::text AS data, e.created_at
FROM unnest(%(job_ids)s::uuid[], %(tenant_ids)s::text[], %(xids)s::text[], %(sequences)s::bigint[], %(to_xids)s::text[],
            %(to_sequences)s::bigint[], %(limits)s::int[])
    WITH ORDINALITY AS a (job_id, tenant_id, xid, sequence, to_xid, to_sequence, most, n)
CROSS JOIN LATERAL (
    SELECT o.xid, o.sequence, o.job_id, o.kind, o.data, o.created_at FROM events o
    WHERE o.job_id = a.job_id AND o.tenant_id = a.tenant_id
      AND (o.xid, o.sequence) > (a.xid::xid8, a.sequence) AND (o.xid, o.sequence) <= (a.to_xid::xid8, a.to_sequence)
      AND o.xid < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY o.xid, o.sequence LIMIT a.most
) e
ORDER BY a.n, e.xid, e.sequence

-- name: events_of_tree
-- The events of a tenant's job and of all jobs below it after a position and up to another one, the first so many of them.
WITH RECURSIVE tree (id) AS (
    SELECT id FROM jobs WHERE id = %(job_id)s AND tenant_id = %(tenant_id)s
    UNION ALL
    SELECT c.id FROM tree t CROSS JOIN LATERAL (SELECT j.id FROM jobs j WHERE j.parent_job_id = t.id OFFSET 0) c
)
SELECT e.xid::text, e.sequence, e.job_id, e.kind, e.data::text AS data, e.created_at
FROM tree t JOIN events e ON e.job_id = t.id
WHERE (e.xid, e.sequence) > (%(xid)s::text::xid8, %(sequence)s)
  AND (e.xid, e.sequence) <= (%(to_xid)s::text::xid8, %(to_sequence)s)
  AND e.xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY e.xid, e.sequence LIMIT %(limit)s

-- name: last_events_of_job
-- The last events of a tenant's job before a position, the newest first, on demand with those of all jobs below it.
WITH RECURSIVE tree (id) AS (
    SELECT id FROM jobs WHERE id = %(job_id)s AND tenant_id = %(tenant_id)s
    UNION ALL
    SELECT c.id FROM tree t
    CROSS JOIN LATERAL (SELECT j.id FROM jobs j WHERE j.parent_job_id = t.id AND %(with_children)s OFFSET 0) c
)
SELECT e.xid::text, e.sequence, e.job_id, e.kind, e.data::text AS data, e.created_at
FROM tree t CROSS JOIN LATERAL (
    SELECT xid, sequence, job_id, kind, data, created_at FROM events
    WHERE job_id = t.id AND (xid, sequence) < (%(xid)s::text::xid8, %(sequence)s)
      AND xid < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY xid DESC, sequence DESC LIMIT %(limit)s
) e
ORDER BY e.xid DESC, e.sequence DESC LIMIT %(limit)s

-- name: last_events_of_tenant
-- The last events of a tenant before a position, the newest first.
SELECT xid::text, sequence, job_id, kind, data::text AS data, created_at FROM events e
WHERE tenant_id = %(tenant_id)s
  AND (xid, sequence) < (%(xid)s::text::xid8, %(sequence)s) AND xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY e.xid DESC, e.sequence DESC LIMIT %(limit)s

-- name: events_of_conversation
-- The same of the turns of a tenant's conversation and of all jobs below them.
WITH RECURSIVE tree (id) AS (
    SELECT DISTINCT m.job_id FROM conversation_messages m
    WHERE m.conversation_id = %(conversation_id)s AND m.tenant_id = %(tenant_id)s AND m.job_id IS NOT NULL
    UNION ALL
    SELECT c.id FROM tree t CROSS JOIN LATERAL (SELECT j.id FROM jobs j WHERE j.parent_job_id = t.id OFFSET 0) c
)
SELECT e.xid::text, e.sequence, e.job_id, e.kind, e.data::text AS data, e.created_at
FROM tree t CROSS JOIN LATERAL (
    SELECT xid, sequence, job_id, kind, data, created_at FROM events
    WHERE job_id = t.id
      AND (xid, sequence) > (%(xid)s::text::xid8, %(sequence)s)
      AND (xid, sequence) <= (%(to_xid)s::text::xid8, %(to_sequence)s)
      AND xid < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY xid, sequence LIMIT %(limit)s
) e
ORDER BY e.xid, e.sequence LIMIT %(limit)s

-- name: root_of_job
-- The job above a tenant's job and all others.
SELECT coalesce(root_job_id, id) AS root FROM jobs WHERE id = %(job_id)s AND tenant_id = %(tenant_id)s

-- name: events_of_tenant
-- The events of a tenant after a position and up to another one, the first so many of them.
SELECT xid::text, sequence, job_id, kind, data::text AS data, created_at FROM events e
WHERE tenant_id = %(tenant_id)s
  AND (xid, sequence) > (%(xid)s::text::xid8, %(sequence)s) AND (xid, sequence) <= (%(to_xid)s::text::xid8, %(to_sequence)s)
  AND xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY e.xid, e.sequence LIMIT %(limit)s

-- name: fresh_events
-- What there is for all who follow, since the look before: events after a position of the jobs, conversations and tenants
-- that somebody follows, of the trees below these roots with the jobs above each, and the pieces of text of the jobs. One
-- row at least: it says up to where this has looked. Whose an event is, is looked up only while somebody follows a tree or
-- a conversation.
WITH found AS (
    SELECT xid, sequence, tenant_id, job_id, kind, data::text AS data, created_at, j.conversation_id,
           CASE WHEN j.root = ANY (%(roots)s::uuid[]) THEN planq_lineage(e.job_id) END AS lineage
    FROM events e LEFT JOIN LATERAL (
        SELECT coalesce(o.root_job_id, o.id) AS root, o.conversation_id FROM jobs o
        WHERE o.id = e.job_id AND (%(roots)s::uuid[] <> '{}' OR %(conversation_ids)s::uuid[] <> '{}') OFFSET 0
    ) j ON true
    WHERE (xid, sequence) > (%(xid)s::text::xid8, %(sequence)s) AND xid < pg_snapshot_xmin(pg_current_snapshot())
      AND (job_id = ANY (%(job_ids)s::uuid[]) OR tenant_id = ANY (%(tenant_ids)s::text[])
           OR j.root = ANY (%(roots)s::uuid[]) OR j.conversation_id = ANY (%(conversation_ids)s::uuid[]))
    ORDER BY xid, sequence LIMIT %(limit)s
), said AS (
    SELECT xid, tenant_id, job_id, stage, attempt, try, start, text FROM text_deltas
    WHERE xid >= %(text_xid)s::text::xid8 AND xid < pg_snapshot_xmin(pg_current_snapshot())
      AND job_id = ANY (%(text_ids)s::uuid[])
), both_kinds AS (
    SELECT xid, sequence, tenant_id, job_id, conversation_id, lineage, kind, data, created_at,
           NULL::text AS stage, NULL::int AS attempt, NULL::int AS try, NULL::int AS start FROM found
    UNION ALL
    SELECT xid, NULL, tenant_id, job_id, NULL, NULL, NULL, text, NULL, stage, attempt, try, start FROM said
)
SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS below, pg_snapshot_xmax(pg_current_snapshot())::text AS following,
       b.xid::text, b.sequence, b.tenant_id, b.job_id, b.conversation_id, b.lineage, b.kind, b.data, b.created_at, b.stage, b.attempt, b.try,
       b.start
FROM (SELECT 1) one LEFT JOIN both_kinds b ON true
ORDER BY b.xid, b.sequence, b.attempt, b.try, b.start

-- name: event_horizon
-- Up to where events can be read now, and the first transaction that has not come yet.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS below, pg_snapshot_xmax(pg_current_snapshot())::text AS following

-- name: has_events_after
-- Whether a tenant's job has events after a position, those of which others may still come before included; on demand
-- with all jobs below it.
WITH RECURSIVE tree (id) AS (
    SELECT id FROM jobs WHERE id = %(job_id)s AND tenant_id = %(tenant_id)s
    UNION ALL
    SELECT c.id FROM tree t
    CROSS JOIN LATERAL (SELECT j.id FROM jobs j WHERE j.parent_job_id = t.id AND %(with_children)s OFFSET 0) c
)
SELECT EXISTS (
    SELECT FROM tree t JOIN events e ON e.job_id = t.id
    WHERE (e.xid, e.sequence) > (%(xid)s::text::xid8, %(sequence)s)
) AS found

-- name: unfinished_jobs_below
-- The jobs below a tenant's job that have not ended. PostgreSQL expects a large tree, for which it would read all jobs; so
-- those below each are asked for by themselves.
WITH RECURSIVE tree (id, status) AS (
    SELECT id, status FROM jobs WHERE id = %(job_id)s AND tenant_id = %(tenant_id)s
    UNION ALL
    SELECT c.id, c.status FROM tree t
    CROSS JOIN LATERAL (SELECT j.id, j.status FROM jobs j WHERE j.parent_job_id = t.id OFFSET 0) c
)
SELECT id FROM tree WHERE id <> %(job_id)s AND NOT planq_is_ended(status)

-- name: unfinished_jobs_of_conversation
-- The turns of a tenant's conversation that have not ended, and the jobs below them that have not; read as those above.
WITH RECURSIVE tree (id, status) AS (
    SELECT id, status FROM jobs
    WHERE conversation_id = %(conversation_id)s AND tenant_id = %(tenant_id)s AND parent_job_id IS NULL
        AND planq_is_unfinished(status)
    UNION ALL
    SELECT c.id, c.status FROM tree t
    CROSS JOIN LATERAL (SELECT j.id, j.status FROM jobs j WHERE j.parent_job_id = t.id OFFSET 0) c
)
SELECT id FROM tree WHERE NOT planq_is_ended(status)

-- name: events_ahead
-- How many events come from transactions that this server has not had yet: those of a backup of another one.
SELECT count(*)::int AS n FROM events WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())

-- name: events_held_seconds
-- For how long the oldest event has been stored that nothing reads before a transaction that is still open has ended.
SELECT coalesce(extract(epoch FROM planq_now() - (
    SELECT created_at FROM events WHERE xid >= pg_snapshot_xmin(pg_current_snapshot()) ORDER BY xid, sequence LIMIT 1
)), 0)::float8 AS seconds

-- name: events_held_back
-- The transaction that has been open longest and has written, if it has been for so long, of this database or another one of the
-- server: no event of a later one is read before it ends. Of a session that this user may not look at nothing is known.
SELECT pid, application_name AS application, datname AS database, extract(epoch FROM planq_now() - xact_start)::float8 AS seconds
FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND xact_start < planq_now() - make_interval(secs => %(seconds)s)
UNION ALL
SELECT NULL, 'a prepared transaction, ' || gid, database, extract(epoch FROM planq_now() - prepared)::float8
FROM pg_prepared_xacts WHERE prepared < planq_now() - make_interval(secs => %(seconds)s)
ORDER BY seconds DESC LIMIT 1
