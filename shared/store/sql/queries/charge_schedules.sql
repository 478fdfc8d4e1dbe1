-- Takes what jobs have used, which this transaction deletes, off the budgets of the reminders that made them: once they
-- are gone nobody knows it.
UPDATE schedules SET budget = planq_budget_left(budget, last_job_id), last_job_id = NULL
WHERE is_active AND budget IS NOT NULL AND last_job_id = ANY (%(ids)s)
