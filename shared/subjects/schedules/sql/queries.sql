-- Schedules: jobs that are made at a time, once or again and again.

-- name: list_schedules
-- A page of a tenant's schedules, newest first, with what their last jobs came to; those that are over only where they are
-- asked for.
SELECT s.id, s.user_id, s.name, s.agent, s.input, s.cron, s.timezone, s.conversation_id, s.next_at, s.last_job_id,
       (SELECT planq_outcome(j.status, j.error) FROM jobs j WHERE j.id = s.last_job_id AND j.tenant_id = s.tenant_id)
           AS last_outcome, s.is_active, s.error, s.created_at
FROM schedules s
WHERE s.tenant_id = %(tenant_id)s AND (s.is_active OR %(everything)s)
  AND (%(created_at)s::timestamptz IS NULL OR (s.created_at, s.id) < (%(created_at)s::timestamptz, %(id)s::uuid))
ORDER BY s.created_at DESC, s.id DESC LIMIT %(limit)s

-- name: delete_schedule
-- Removes a schedule; the jobs that it made stay.
DELETE FROM schedules WHERE id = %(id)s AND tenant_id = %(tenant_id)s

-- name: stop_schedule
-- Switches a schedule off that cannot be fired, and says why; no change where somebody else has fired it meanwhile.
UPDATE schedules SET is_active = false, next_at = NULL, error = %(error)s
WHERE id = %(id)s AND is_active AND next_at = %(due_at)s

-- name: due_schedules
-- Schedules whose time has come, longest overdue first, and the database's time. `is_spent`: nothing is left of the budget.
-- One with a budget waits until its last job has ended: until then that may use whatever it was given. So does one of a
-- conversation, whose turns would else queue behind one that waits for a person. Those of a disabled
-- tenant wait until it is enabled. `kept_version` is that in which the conversation has its agent, null for the newest.
SELECT id, tenant_id, name, agent, cron, timezone, strategy, model, next_at, planq_now() AS now, loop_block AS loop,
       coalesce(planq_budget_left(budget, last_job_id)::jsonb @? '$.* ? (@ <= 0)', false) AS is_spent, conversation_id,
       (SELECT k.version FROM conversation_agents k JOIN conversations c ON c.id = k.conversation_id AND c.tenant_id = k.tenant_id
        WHERE k.tenant_id = schedules.tenant_id AND k.conversation_id = schedules.conversation_id AND k.agent = schedules.agent
          AND NOT c.follows_agent) AS kept_version
FROM schedules
WHERE is_active AND next_at <= planq_now() AND (budget IS NULL AND conversation_id IS NULL OR NOT EXISTS (
        SELECT FROM jobs j WHERE j.id = last_job_id AND NOT planq_is_ended(j.status)))
  AND NOT (SELECT t.is_disabled FROM tenants t WHERE t.id = tenant_id)
ORDER BY next_at LIMIT %(limit)s

-- name: tidy_schedules
-- Removes schedules that are over and older than any job that could still ask for them.
DELETE FROM schedules WHERE id IN (
    SELECT id FROM schedules WHERE NOT is_active AND created_at < planq_now() - interval '30 days'
    ORDER BY created_at LIMIT 1000
)

-- name: sweep_look/schedules
SELECT 'schedules', NULL, NULL WHERE EXISTS (
    SELECT FROM schedules WHERE is_active AND next_at <= planq_now()
      AND (budget IS NULL AND conversation_id IS NULL OR NOT EXISTS (
        SELECT FROM jobs j WHERE j.id = last_job_id AND NOT planq_is_ended(j.status)))
      AND NOT (SELECT t.is_disabled FROM tenants t WHERE t.id = tenant_id)
)
UNION ALL
SELECT 'next', NULL, extract(epoch FROM next.at - planq_now())::float8 FROM (
    SELECT min(next_at) AS at FROM schedules
    WHERE is_active AND next_at > planq_now() AND next_at < planq_now() + make_interval(secs => %(ahead_seconds)s)
) next WHERE next.at IS NOT NULL
