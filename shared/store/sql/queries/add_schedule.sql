-- Stores a schedule for a user, with what its jobs inherit: the model and the only tools of the job that asks, and the
-- limits of the outermost one above it, whose time its own is only a part of. `budget` is what its tree has left. No row
-- where one with this id is there already.
INSERT INTO schedules (id, tenant_id, user_id, name, agent, input, cron, timezone, strategy, model, limits, budget,
                       tools, next_at)
SELECT %(id)s, j.tenant_id, j.user_id, %(name)s, %(agent)s, %(input)s, %(cron)s, %(timezone)s, r.strategy, j.model,
       r.limits, %(budget)s::json, j.tools, %(next_at)s
FROM jobs j JOIN jobs r ON r.id = coalesce(j.root_job_id, j.id)
WHERE j.id = %(job_id)s AND j.tenant_id = %(tenant_id)s
ON CONFLICT (id) DO NOTHING
RETURNING id
