-- A page of a tenant's schedules, newest first; those that are over only where they are asked for.
SELECT id, user_id, name, agent, input, cron, timezone, next_at, last_job_id, is_active, error, created_at
FROM schedules
WHERE tenant_id = %(tenant_id)s AND (is_active OR %(everything)s)
  AND (%(created_at)s::timestamptz IS NULL OR (created_at, id) < (%(created_at)s::timestamptz, %(id)s::uuid))
ORDER BY created_at DESC, id DESC LIMIT %(limit)s
