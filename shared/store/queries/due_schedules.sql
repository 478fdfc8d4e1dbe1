-- Schedules whose time has come, longest overdue first, and the database's time. `is_spent`: nothing is left of the budget.
SELECT id, tenant_id, name, agent, cron, timezone, strategy, model, next_at, now() AS now,
       planq_budget_is_spent(planq_budget_left(budget, last_job_id)) AS is_spent
FROM schedules
WHERE is_active AND next_at <= now() ORDER BY next_at LIMIT %(limit)s
