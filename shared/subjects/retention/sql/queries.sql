-- Retention: jobs that have ended and are old enough to be deleted.

-- name: count_purgeable_jobs
-- How many jobs in one status are due to be deleted now, at most `most` of them, and when the oldest of these ended.
SELECT count(*)::int AS count, min(due.finished_at) AS oldest FROM (
    SELECT d.finished_at FROM tenants t
    CROSS JOIN LATERAL (SELECT planq_kept_since(t.config, %(status)s, %(seconds)s) AS since) k
    CROSS JOIN unnest(%(strategies)s::text[]) AS g (strategy)
    CROSS JOIN LATERAL planq_purgeable_jobs(t.id, %(status)s, g.strategy, k.since, %(after)s, %(most)s) d
    LIMIT %(most)s
) due

-- name: count_purgeable_batches
-- How many batches in one status are due, at most `most`.
SELECT count(*)::int AS count FROM (
    SELECT FROM batches b JOIN tenants t ON t.id = b.tenant_id
    WHERE b.status = %(status)s AND b.finished_at IS NOT NULL
      AND b.finished_at < planq_kept_since(t.config, %(status)s, %(seconds)s)
    ORDER BY b.finished_at LIMIT %(most)s
) due

-- name: count_old_deliveries
-- How many deliveries are due, at most `most`.
SELECT count(*)::int AS count FROM (
    SELECT FROM deliveries WHERE finished_at < planq_now() - make_interval(secs => %(seconds)s) LIMIT %(most)s
) due

-- name: count_old_messages
-- How many messages are due whose jobs are gone already, at most `most`.
SELECT count(*)::int AS count FROM (
    SELECT FROM tenants t
    CROSS JOIN LATERAL (SELECT planq_first_id(planq_kept_since(t.config, 'conversations', %(seconds)s)) AS first) k
    CROSS JOIN LATERAL (
        SELECT FROM conversation_messages m
        WHERE m.tenant_id = t.id AND m.id < k.first AND m.status IN ('done', 'erased')
          AND NOT EXISTS (SELECT FROM jobs j WHERE j.id = m.job_id)
        ORDER BY m.id LIMIT %(most)s
    ) m
    LIMIT %(most)s
) due

-- name: count_old_conversations
-- How many conversations are due that have no message any more, and no reminder, at most `most`.
SELECT count(*)::int AS count FROM (
    SELECT FROM tenants t
    CROSS JOIN LATERAL (SELECT planq_kept_since(t.config, 'conversations', %(seconds)s) AS since) k
    CROSS JOIN LATERAL (
        SELECT FROM conversations c
        WHERE c.tenant_id = t.id AND c.id < planq_first_id(k.since) AND c.active_job_id IS NULL
          AND greatest(c.created_at, c.last_inbound_at, c.last_outbound_at) < k.since
          AND NOT EXISTS (SELECT FROM conversation_messages m WHERE m.conversation_id = c.id)
          AND NOT EXISTS (SELECT FROM schedules s WHERE s.conversation_id = c.id AND s.is_active)
        ORDER BY c.id LIMIT %(most)s
    ) c
    LIMIT %(most)s
) due

-- name: count_old_versions
-- How many versions of agents and skills are due, at most `most`.
SELECT count(*)::int AS count FROM (
    SELECT FROM tenants t
    CROSS JOIN LATERAL planq_old_versions(t.id, planq_kept_since(t.config, 'versions', %(seconds)s), %(most)s) LIMIT %(most)s
) due

-- name: tenants_with_purgeable_jobs
-- The tenants with a job in one status that is old enough, if that has ended early enough, too.
SELECT t.id FROM tenants t
CROSS JOIN LATERAL (SELECT planq_kept_since(t.config, %(status)s, %(seconds)s) AS since) k
WHERE k.since IS NOT NULL AND EXISTS (
    SELECT FROM unnest(%(strategies)s::text[]) AS g (strategy) WHERE (
        SELECT true FROM jobs d
        WHERE d.tenant_id = t.id AND d.status = %(status)s AND d.strategy = g.strategy AND d.id < planq_first_id(k.since)
        ORDER BY d.id LIMIT 1))
ORDER BY t.id

-- name: lock_retention
-- Lets those who remove jobs take turns until the transaction ends: they would look at the same ones.
SELECT pg_advisory_xact_lock(hashtext('planq.retention'))

-- name: lock_purgeable_jobs
-- Jobs of a tenant in one status that ended more than `seconds` ago, or longer than the tenant keeps them, oldest first, behind
-- `after`. At most `limit` jobs, and no more once those found have `most_steps` steps; `has_more` says whether there may be
-- others behind. They are locked until the transaction ends but for those that somebody holds, which are not `is_held` here.
WITH sized AS MATERIALIZED (
    SELECT old.id, sum(s.steps) OVER (ORDER BY old.id) - s.steps AS steps_before
    FROM (
        SELECT d.id FROM tenants t
        CROSS JOIN LATERAL (SELECT planq_kept_since(t.config, %(status)s, %(seconds)s) AS since) k
        CROSS JOIN unnest(%(strategies)s::text[]) AS g (strategy)
        CROSS JOIN LATERAL planq_purgeable_jobs(t.id, %(status)s, g.strategy, k.since, %(after)s, %(limit)s) d
        WHERE t.id = %(tenant_id)s
        ORDER BY d.id LIMIT %(limit)s
    ) old
    CROSS JOIN LATERAL (SELECT count(*) AS steps FROM steps s WHERE s.job_id = old.id) s
), held AS MATERIALIZED (
    SELECT j.id FROM jobs j
    WHERE j.id = ANY (ARRAY(SELECT id FROM sized WHERE steps_before < %(most_steps)s)) AND j.status = %(status)s
      AND j.finished_at < planq_kept_since(
          (SELECT t.config FROM tenants t WHERE t.id = %(tenant_id)s), %(status)s, %(seconds)s)
    FOR UPDATE SKIP LOCKED
)
SELECT s.id, s.id IN (SELECT id FROM held) AS is_held,
       (SELECT count(*) >= %(limit)s OR max(steps_before) >= %(most_steps)s FROM sized) AS has_more
FROM sized s WHERE s.steps_before < %(most_steps)s ORDER BY s.id

-- name: delete_purgeable_batch
-- Deletes the batch in one status that ended first, with its lines, if that was more than `seconds` ago, or longer than its
-- tenant keeps jobs that ended so. Its jobs may then go, too: they ended before it.
WITH old AS MATERIALIZED (  -- IN, and a join, may look for another one again and again
    SELECT d.id FROM batches d JOIN tenants t ON t.id = d.tenant_id
    WHERE d.status = %(status)s AND d.finished_at IS NOT NULL
      AND d.finished_at < planq_kept_since(t.config, %(status)s, %(seconds)s)
    ORDER BY d.finished_at LIMIT 1 FOR UPDATE OF d SKIP LOCKED
)
DELETE FROM batches b USING old WHERE b.id = old.id

-- name: delete_purgeable_jobs
-- Deletes jobs that this transaction has locked, with everything that hangs on them; a child or a fork that was made
-- after they were found keeps its job (a statement of its own sees it). Yields their ids, and whether child jobs stayed for
-- them.
-- An artifact that another job names too, since it took the outcome over, is handed to the newest such job instead: its
-- row is the only one of that id, so it cannot be copied when the outcome is. Where all of them are being deleted as
-- well, here or by somebody else, its job stays for a later batch. The lock is one that nobody waits for, so that two
-- processes cannot wait for each other.
WITH holders AS (
    SELECT a.tenant_id, a.id, a.version, a.job_id, h.job_id AS holder, h.index
    FROM artifacts a
    JOIN jobs d ON d.id = a.job_id
    JOIN steps o ON o.job_id = d.id AND o.index = a.step_index
    JOIN steps h ON h.origin_job = coalesce(o.origin_job, o.job_id)
                AND h.origin_index = coalesce(o.origin_index, o.index) AND h.job_id <> a.job_id
    WHERE a.job_id = ANY (%(ids)s)
), kept AS (
    SELECT k.id FROM jobs k WHERE k.id IN (SELECT holder FROM holders) AND k.id <> ALL (%(ids)s)
    FOR KEY SHARE SKIP LOCKED
), heirs AS (
    SELECT DISTINCT ON (tenant_id, id, version) * FROM holders WHERE holder IN (SELECT id FROM kept)
    ORDER BY tenant_id, id, version, holder DESC
), gone AS (
    DELETE FROM jobs j WHERE j.id = ANY (%(ids)s)
      AND NOT EXISTS (
          SELECT FROM jobs c WHERE c.parent_job_id = j.id
            AND planq_is_unfinished(c.status))
      AND NOT EXISTS (
          SELECT FROM jobs f WHERE f.forked_from = j.id
            AND planq_is_unfinished(f.status))
      AND NOT EXISTS (
          SELECT FROM holders o WHERE o.job_id = j.id
            AND (o.tenant_id, o.id, o.version) NOT IN (SELECT tenant_id, id, version FROM heirs))
    RETURNING j.id
), handed_over AS (
    UPDATE artifacts a SET job_id = h.holder, step_index = h.index
    FROM heirs h JOIN gone ON gone.id = h.job_id
    WHERE a.tenant_id = h.tenant_id AND a.id = h.id AND a.version = h.version
)
SELECT id, EXISTS (SELECT FROM jobs c WHERE c.parent_job_id = gone.id) AS has_children FROM gone

-- name: charge_schedules
-- Takes what jobs have used, which this transaction deletes, off the budgets of the reminders that made them: once they
-- are gone nobody knows it.
UPDATE schedules SET budget = planq_budget_left(budget, last_job_id), last_job_id = NULL
WHERE is_active AND budget IS NOT NULL AND last_job_id = ANY (%(ids)s)

-- name: delete_old_deliveries
-- Removes deliveries that ended long enough ago, oldest first.
DELETE FROM deliveries WHERE id = ANY (ARRAY(  -- see delete_purgeable_batch
    SELECT id FROM deliveries WHERE finished_at < planq_now() - make_interval(secs => %(seconds)s)
    ORDER BY finished_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
))

-- name: tenants_of_conversations
-- The tenants that have conversations of which something may go: `seconds` is how long they are kept, or their own days.
SELECT t.id FROM tenants t
CROSS JOIN LATERAL (SELECT planq_first_id(planq_kept_since(t.config, 'conversations', %(seconds)s)) AS first) k
WHERE (SELECT true FROM conversations c WHERE c.tenant_id = t.id AND c.id < k.first ORDER BY c.id LIMIT 1)
ORDER BY t.id

-- name: delete_old_messages
-- Removes those of a tenant's next so many messages, behind one, that came long enough ago and whose job is gone; yields how many,
-- and the last that was looked at. No row where there is none. So a conversation without a message has no turn that goes on.
WITH page AS MATERIALIZED (
    SELECT m.conversation_id, m.sequence, m.id FROM tenants t
    CROSS JOIN LATERAL (SELECT planq_first_id(planq_kept_since(t.config, 'conversations', %(seconds)s)) AS first) k
    CROSS JOIN LATERAL (
        SELECT conversation_id, sequence, id FROM conversation_messages
        WHERE tenant_id = t.id AND id > %(after)s AND id < k.first ORDER BY id LIMIT %(limit)s
    ) m
    WHERE t.id = %(tenant_id)s
), gone AS (
    DELETE FROM conversation_messages d USING page p
    WHERE d.conversation_id = p.conversation_id AND d.sequence = p.sequence AND d.status IN ('done', 'erased')
      AND NOT EXISTS (SELECT FROM jobs j WHERE j.id = d.job_id)
    RETURNING d.id
)
SELECT id, (SELECT count(*) FROM gone)::int AS removed FROM page ORDER BY page.id DESC LIMIT 1

-- name: delete_old_conversations
-- The same of conversations in which nothing has been said for so long, of which no message is left, and in which no reminder is
-- to come.
WITH page AS MATERIALIZED (
    SELECT c.id, k.since FROM tenants t
    CROSS JOIN LATERAL (SELECT planq_kept_since(t.config, 'conversations', %(seconds)s) AS since) k
    CROSS JOIN LATERAL (
        SELECT id FROM conversations
        WHERE tenant_id = t.id AND id > %(after)s AND id < planq_first_id(k.since) ORDER BY id LIMIT %(limit)s
    ) c
    WHERE t.id = %(tenant_id)s
), old AS MATERIALIZED (
    SELECT c.id FROM page p JOIN conversations c ON c.id = p.id
    WHERE c.active_job_id IS NULL AND greatest(c.created_at, c.last_inbound_at, c.last_outbound_at) < p.since
      AND NOT EXISTS (SELECT FROM conversation_messages m WHERE m.conversation_id = c.id)
      AND NOT EXISTS (SELECT FROM schedules s WHERE s.conversation_id = c.id AND s.is_active)
    FOR UPDATE OF c SKIP LOCKED
), gone AS (
    DELETE FROM conversations d USING old WHERE d.id = old.id RETURNING d.id
)
SELECT id, (SELECT count(*) FROM gone)::int AS removed FROM page ORDER BY page.id DESC LIMIT 1

-- name: tenants_of_versions
-- The tenants with a version of an agent or a skill that may be old: a later one has been there for so long.
SELECT DISTINCT t.id FROM (
    SELECT tenant_id, lead(created_at) OVER (PARTITION BY tenant_id, name ORDER BY version) AS until FROM agents
    UNION ALL
    SELECT tenant_id, lead(created_at) OVER (PARTITION BY tenant_id, name ORDER BY version) FROM skills
) v
JOIN tenants t ON t.id = v.tenant_id
WHERE v.until < planq_kept_since(t.config, 'versions', %(seconds)s)
ORDER BY t.id

-- name: delete_old_versions
-- Removes some of a tenant's versions of agents and skills that nobody needs any more; yields how many.
WITH old AS MATERIALIZED (
    SELECT o.kind, o.name, o.version FROM tenants t
    CROSS JOIN LATERAL planq_old_versions(t.id, planq_kept_since(t.config, 'versions', %(seconds)s), %(limit)s) o
    WHERE t.id = %(tenant_id)s
), agents_gone AS (
    DELETE FROM agents a USING old o
    WHERE o.kind = 'agent' AND a.tenant_id = %(tenant_id)s AND a.name = o.name AND a.version = o.version RETURNING a.name
), skills_gone AS (
    DELETE FROM skills s USING old o
    WHERE o.kind = 'skill' AND s.tenant_id = %(tenant_id)s AND s.name = o.name AND s.version = o.version RETURNING s.name
)
SELECT ((SELECT count(*) FROM agents_gone) + (SELECT count(*) FROM skills_gone))::int AS removed
