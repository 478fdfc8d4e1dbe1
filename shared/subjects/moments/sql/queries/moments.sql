-- Memory: what agents keep about users, and the reminders that they set.

-- name: lock_user
-- What is kept of a user; nobody else changes it before the transaction ends.
SELECT data FROM user_metadata WHERE tenant_id = %(tenant_id)s AND user_id = %(user_id)s FOR UPDATE

-- name: add_user
-- Makes room for what is kept of a user.
INSERT INTO user_metadata (tenant_id, user_id, data) VALUES (%(tenant_id)s, %(user_id)s, '{}')
ON CONFLICT (tenant_id, user_id) DO NOTHING

-- name: change_user
-- Puts something else in the place of what is kept of a user.
UPDATE user_metadata SET data = %(data)s, updated_at = planq_now()
WHERE tenant_id = %(tenant_id)s AND user_id = %(user_id)s

-- name: save_moments
-- Saves moments (a JSON array whose `body` are texts that hold JSON); those that are there already stay as they are.
INSERT INTO moments (tenant_id, id, user_id, name, summary, body, starts_at, ends_at, tags)
SELECT %(tenant_id)s, m.id, %(user_id)s, m.name, m.summary, m.body::json, coalesce(m.starts_at, planq_now()), m.ends_at,
       m.tags
FROM json_to_recordset(%(moments)s) AS m (
    id uuid, name text, summary text, body text, starts_at timestamptz, ends_at timestamptz, tags text[]
)
ON CONFLICT (tenant_id, id) DO NOTHING

-- name: recent_moments
-- A user's moments, newest first: those that have all tags and begin in a time.
SELECT id, name, summary, body, starts_at, ends_at, tags, 0::float8 AS score FROM moments
WHERE tenant_id = %(tenant_id)s AND user_id = %(user_id)s AND tags @> %(tags)s::text[]
  AND starts_at >= coalesce(%(since)s::timestamptz, '-infinity')
  AND starts_at < coalesce(%(until)s::timestamptz, 'infinity')
ORDER BY starts_at DESC, id LIMIT %(limit)s

-- name: search_moments
-- A user's moments that share a word with the query, best first, then newest: those that have all tags and begin in a
-- time. Any word may match, as in search_passages.
WITH wanted AS (
    SELECT replace(plainto_tsquery('english', %(query)s)::text, '&', '|')::tsquery AS query
)
SELECT m.id, m.name, m.summary, m.body, m.starts_at, m.ends_at, m.tags,
       ts_rank_cd(m.search, wanted.query, 1)::float8 AS score
FROM moments m, wanted
WHERE m.tenant_id = %(tenant_id)s AND m.user_id = %(user_id)s AND m.search @@ wanted.query
  AND m.tags @> %(tags)s::text[]
  AND m.starts_at >= coalesce(%(since)s::timestamptz, '-infinity')
  AND m.starts_at < coalesce(%(until)s::timestamptz, 'infinity')
ORDER BY score DESC, m.starts_at DESC, m.id LIMIT %(limit)s

-- name: lock_job
-- Keeps everybody else from changing a job until the transaction ends; no row where there is none.
SELECT id FROM jobs WHERE id = %(job_id)s AND tenant_id = %(tenant_id)s FOR UPDATE

-- name: lock_schedules
-- Lets those who store a reminder for one tenant take turns until the transaction ends; other tenants do not wait.
SELECT pg_advisory_xact_lock(hashtextextended('planq.schedules/' || j.tenant_id, 0))
FROM jobs j WHERE j.id = %(job_id)s AND j.tenant_id = %(tenant_id)s

-- name: room_for_schedule
-- What a job's user, tenant and tree leave for one more reminder: how many the user and the tenant have that are still to
-- come, how many the tenant may have, and what is left of the tree's budget, null where it has none.
SELECT (SELECT count(*) FROM schedules s WHERE s.tenant_id = j.tenant_id AND s.user_id = j.user_id AND s.is_active) AS kept,
       (SELECT count(*) FROM schedules s WHERE s.tenant_id = j.tenant_id AND s.is_active) AS kept_of_tenant,
       (SELECT coalesce((t.config ->> 'max_reminders')::int, %(most_of_tenant)s::int) FROM tenants t
        WHERE t.id = j.tenant_id) AS most_of_tenant,
       b.budget_left::text AS budget_left, coalesce(b.budget_left::jsonb @? '$.* ? (@ <= 0)', false) AS is_spent
FROM jobs j JOIN jobs r ON r.id = coalesce(j.root_job_id, j.id) AND r.tenant_id = j.tenant_id
CROSS JOIN LATERAL (SELECT planq_budget_left(r.budget, r.id) AS budget_left) b
WHERE j.id = %(job_id)s AND j.tenant_id = %(tenant_id)s

-- name: add_schedule
-- Stores a schedule for a user, with what its jobs inherit: the model, the priority and the only tools of the job that asks, and the
-- strategy, the loop block and the limits of the outermost one above it, whose time its own is only a part of; where that is a
-- turn, its jobs are turns of the same conversation. `budget` is what its tree has left. No row where one with this id is there
-- already, or where the turn has ended: its conversation may have been erased, and the reminders of it.
INSERT INTO schedules (id, tenant_id, user_id, name, agent, input, cron, timezone, strategy, loop_block, model, limits,
                       budget, tools, priority, conversation_id, next_at)
SELECT %(id)s, j.tenant_id, j.user_id, %(name)s, %(agent)s, %(input)s, %(cron)s, %(timezone)s, r.strategy, r.loop_block,
       j.model, r.limits, %(budget)s::json, j.tools, j.priority, r.conversation_id, %(next_at)s
FROM jobs j JOIN jobs r ON r.id = coalesce(j.root_job_id, j.id) AND r.tenant_id = j.tenant_id
WHERE j.id = %(job_id)s AND j.tenant_id = %(tenant_id)s
  AND (r.conversation_id IS NULL OR NOT planq_is_ended(r.status))
FOR SHARE OF r
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: append_step_event
-- Appends an event of a step to its job's stream, once for each kind, as long as the attempt that gives it runs. The
-- job is locked. One row: `ran` says whether it runs.
WITH running AS (
    SELECT tenant_id, job_id FROM steps
    WHERE job_id = %(job_id)s AND tenant_id = %(tenant_id)s AND round = %(round)s AND index = %(index)s
      AND attempt = %(attempt)s AND status = ANY (planq_step_running())
), appended AS (
    INSERT INTO events (tenant_id, job_id, kind, data)
    SELECT r.tenant_id, r.job_id, %(kind)s,
           (planq_place(%(round)s, %(index)s) || substr(%(data)s::json::text, 2))::json FROM running r
    WHERE NOT EXISTS (
        SELECT FROM events e WHERE e.job_id = r.job_id AND e.kind = %(kind)s
          AND starts_with(e.data::text, planq_place(%(round)s, %(index)s))
    )
)
SELECT EXISTS (SELECT FROM running) AS ran

-- name: get_schedule
-- One schedule, and the database's time.
SELECT s.next_at, s.is_active, planq_now() AS now FROM (SELECT 1) one
LEFT JOIN schedules s ON s.id = %(id)s AND s.tenant_id = %(tenant_id)s
