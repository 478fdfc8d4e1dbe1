-- Channels: those of a tenant whose replies are sent.

-- name: connect_channel
-- Stores a channel in the place of one of its name; no row where there is no such tenant.
INSERT INTO channels (tenant_id, name, kind, config, knows_repeats, secret_hash, created_at, updated_at)
SELECT t.id, %(name)s, %(kind)s, %(config)s::json, %(knows_repeats)s, %(secret_hash)s, planq_now(), planq_now()
FROM tenants t WHERE t.id = %(tenant_id)s
ON CONFLICT (tenant_id, name) DO UPDATE SET kind = excluded.kind, config = excluded.config,
    knows_repeats = excluded.knows_repeats, secret_hash = excluded.secret_hash, problem = NULL, paused_until = NULL,
    updated_at = planq_now()

-- name: list_channels
-- The channels of a tenant that are sent to, by name.
SELECT name, kind, config, secret_hash, paused_until, problem, created_at, updated_at FROM channels
WHERE tenant_id = %(tenant_id)s ORDER BY name

-- name: get_channel
-- One channel of a tenant.
SELECT name, kind, config, secret_hash, paused_until, problem, created_at, updated_at FROM channels
WHERE tenant_id = %(tenant_id)s AND name = %(name)s

-- name: troubled_channels
-- How many channels cannot be sent to, and the first of them, of all tenants.
SELECT tenant_id, name, problem, count(*) OVER () AS n FROM channels
WHERE problem IS NOT NULL ORDER BY tenant_id, name LIMIT %(limit)s

-- name: chats_of_turns
-- In which threads of channels of some kinds these jobs, or jobs above them, are the turn, without those that cannot be sent to.
SELECT DISTINCT h.kind, c.tenant_id, c.thread FROM jobs j
JOIN jobs r ON r.id = coalesce(j.root_job_id, j.id) AND r.tenant_id = j.tenant_id
JOIN conversations c ON c.id = r.conversation_id AND c.active_job_id = r.id AND c.tenant_id = r.tenant_id
JOIN channels h ON h.tenant_id = c.tenant_id AND h.name = c.channel
WHERE j.id = ANY(%(jobs)s) AND h.kind = ANY(%(kinds)s) AND h.problem IS NULL
  AND (h.paused_until IS NULL OR h.paused_until <= planq_now())
LIMIT %(limit)s

-- name: disconnect_channel
-- Nothing is sent to a channel any more.
DELETE FROM channels WHERE tenant_id = %(tenant_id)s AND name = %(name)s

-- name: turn_of_thread
-- A row where a job is a turn of a thread of a channel.
SELECT j.id FROM conversations c JOIN jobs j ON j.conversation_id = c.id AND j.tenant_id = c.tenant_id
WHERE c.tenant_id = %(tenant_id)s AND c.channel = %(name)s AND c.thread = %(thread)s AND j.id = %(job_id)s

-- name: note_part
-- %(parts)s parts of a message have arrived, the last of them as %(external)s. No change by an attempt that is not the newest one.
UPDATE deliveries SET parts = %(parts)s, external_id = %(external)s
WHERE id = %(id)s AND status = 'sending' AND attempt = %(attempt)s AND parts < %(parts)s

-- name: move_thread
-- The channel knows a thread, and those below it, by another name from now on. One that is there under the new name stays as it
-- is, and so does the old one.
UPDATE conversations c SET thread = %(after)s::text || substr(c.thread, length(%(before)s::text) + 1)
WHERE c.tenant_id = %(tenant_id)s AND c.channel = %(channel)s
  AND (c.thread = %(before)s::text OR starts_with(c.thread, %(before)s::text || '/'))
  AND NOT EXISTS (
    SELECT FROM conversations o WHERE o.tenant_id = %(tenant_id)s AND o.channel = %(channel)s
      AND o.thread = %(after)s::text || substr(c.thread, length(%(before)s::text) + 1))

-- name: hold_polling
-- A process fetches the messages of a channel for %(seconds)s more; no change where another one does.
UPDATE channels SET polled_by = %(holder)s, polled_until = planq_now() + make_interval(secs => %(seconds)s)
WHERE tenant_id = %(tenant_id)s AND name = %(name)s
  AND (polled_by = %(holder)s OR polled_until IS NULL OR polled_until <= planq_now())
