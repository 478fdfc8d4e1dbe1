-- Schedules whose time has come, longest overdue first, and the database's time.
SELECT id, tenant_id, name, agent, cron, timezone, strategy, model, next_at, now() AS now FROM schedules
WHERE is_active AND next_at <= now() ORDER BY next_at LIMIT %(limit)s
