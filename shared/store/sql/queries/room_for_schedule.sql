-- What a job's user and tree leave for one more reminder: how many the user has that are still to come, and what is left
-- of the tree's budget, null where it has none.
SELECT (SELECT count(*) FROM schedules s WHERE s.tenant_id = j.tenant_id AND s.user_id = j.user_id AND s.is_active) AS kept,
       b.budget_left::text AS budget_left, planq_budget_is_spent(b.budget_left) AS is_spent
FROM jobs j JOIN jobs r ON r.id = coalesce(j.root_job_id, j.id)
CROSS JOIN LATERAL (SELECT planq_budget_left(r.budget, r.id) AS budget_left) b
WHERE j.id = %(job_id)s AND j.tenant_id = %(tenant_id)s
