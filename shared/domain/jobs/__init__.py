"""The rules of durable work: states, ids, retries, limits, budgets, schedules, and when a process has gone."""
