-- Job actions: asked for, looked at, stopped.

-- name: begin_action
-- Stores an action, unless its tenant has sent one under the same idempotency key.
INSERT INTO job_actions (id, tenant_id, act, filter, repeat_unsafe, after_job, idempotency_key, request_hash)
VALUES (%(id)s, %(tenant_id)s, %(act)s, %(filter)s, %(repeat_unsafe)s, %(after)s, %(idempotency_key)s, %(request_hash)s)
ON CONFLICT (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING id

-- name: action_by_key
-- The action that a tenant has sent under an idempotency key.
SELECT id, request_hash FROM job_actions WHERE tenant_id = %(tenant_id)s AND idempotency_key = %(idempotency_key)s

-- name: forget_actions
-- Removes a tenant's oldest actions that ended long ago.
DELETE FROM job_actions WHERE tenant_id = %(tenant_id)s AND id IN (
    SELECT id FROM job_actions
    WHERE tenant_id = %(tenant_id)s AND id < planq_first_id(planq_now() - make_interval(days => %(days)s))
      AND status <> 'running'
    ORDER BY id LIMIT %(limit)s
)

-- name: get_action
-- One action of a tenant.
SELECT * FROM job_actions WHERE id = %(id)s AND tenant_id = %(tenant_id)s

-- name: list_actions
-- A tenant's newest actions.
SELECT * FROM job_actions WHERE tenant_id = %(tenant_id)s AND id < %(below)s ORDER BY id DESC LIMIT %(limit)s

-- name: take_action
-- A process begins with the action that has waited for longest, or goes on with one where another was lost, and holds it for
-- %(seconds)s; no row where all are held, or over.
UPDATE job_actions SET held_by = %(holder)s, held_until = planq_now() + make_interval(secs => %(seconds)s)
WHERE id = (
    SELECT id FROM job_actions
    WHERE status = 'running' AND (held_by = %(holder)s OR held_until IS NULL OR held_until <= planq_now())
    ORDER BY id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
) AND status = 'running'
RETURNING *

-- name: stop_action
-- Lets an action look at no further job; no row where it is over.
UPDATE job_actions SET status = 'cancelled', finished_at = planq_clock()
WHERE id = %(id)s AND tenant_id = %(tenant_id)s AND status = 'running'
RETURNING id

-- name: sweep_look/actions
SELECT 'actions', NULL, NULL WHERE EXISTS (SELECT FROM job_actions WHERE status = 'running')
