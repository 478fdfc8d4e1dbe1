-- Schedules whose time has come, longest overdue first, and the database's time. `is_spent`: nothing is left of the budget.
-- One with a budget waits until its last job has ended: until then that may use whatever it was given.
SELECT id, tenant_id, name, agent, cron, timezone, strategy, model, next_at, planq_now() AS now,
       planq_budget_is_spent(planq_budget_left(budget, last_job_id)) AS is_spent
FROM schedules
WHERE is_active AND next_at <= planq_now() AND (budget IS NULL OR planq_has_ended(last_job_id))
ORDER BY next_at LIMIT %(limit)s
