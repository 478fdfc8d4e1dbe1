-- Tenants: who owns rows, and what an operator has said of each.

-- name: get_tenant
-- One tenant.
SELECT id, name, is_disabled, coalesce(config::text, '{}') AS config, created_at, updated_at FROM tenants WHERE id = %(tenant_id)s

-- name: list_tenants
-- A page of all tenants in the order of their ids, after the one named.
SELECT id, name, is_disabled, coalesce(config::text, '{}') AS config, created_at, updated_at FROM tenants
WHERE id > %(after)s ORDER BY id LIMIT %(limit)s

-- name: create_tenant
-- Creates a tenant; no row where there is one of this id.
INSERT INTO tenants (id, name, config, created_at, updated_at)
VALUES (%(tenant_id)s, %(name)s, %(config)s::json, planq_now(), planq_now())
ON CONFLICT DO NOTHING
RETURNING id, name, is_disabled, coalesce(config::text, '{}') AS config, created_at, updated_at

-- name: put_tenant
-- Creates a tenant, or replaces all that is said of one.
INSERT INTO tenants AS t (id, name, is_disabled, config, created_at, updated_at)
VALUES (%(tenant_id)s, %(name)s, %(is_disabled)s, %(config)s::json, planq_now(), planq_now())
ON CONFLICT (id) DO UPDATE SET name = excluded.name, is_disabled = excluded.is_disabled, config = excluded.config,
    updated_at = greatest(excluded.updated_at, t.updated_at + interval '1 microsecond')
RETURNING id, name, is_disabled, coalesce(config::text, '{}') AS config, created_at, updated_at, t.xmax = 0 AS is_new

-- name: change_tenant
-- Replaces what is given of a tenant (null leaves it), unless it has changed since `seen_at`; no row then, and where there
-- is none.
UPDATE tenants SET name = coalesce(%(name)s, name), config = coalesce(%(config)s::json, config),
    is_disabled = coalesce(%(is_disabled)s::boolean, is_disabled),
    updated_at = greatest(planq_now(), updated_at + interval '1 microsecond')
WHERE id = %(tenant_id)s AND updated_at = coalesce(%(seen_at)s::timestamptz, updated_at)
RETURNING id, name, is_disabled, coalesce(config::text, '{}') AS config, created_at, updated_at

-- name: usage_of_tenant
-- What a tenant has open or keeps now, of what its configuration bounds.
SELECT (SELECT coalesce(sum(p.held), 0)::int FROM tenant_places p
        WHERE p.tenant_id = %(tenant_id)s AND p.kind = 'streams' AND p.until > planq_now()) AS streams,
       (SELECT coalesce(sum(p.held), 0)::int FROM tenant_places p
        WHERE p.tenant_id = %(tenant_id)s AND p.kind = 'waits' AND p.until > planq_now()) AS waits,
       (SELECT count(*) FROM questions q WHERE q.tenant_id = %(tenant_id)s AND q.status = 'open') AS open_questions,
       (SELECT count(*) FROM schedules s WHERE s.tenant_id = %(tenant_id)s AND s.is_active) AS reminders,
       (SELECT count(*) FROM endpoints o WHERE o.tenant_id = %(tenant_id)s) AS endpoints,
       planq_stored_bytes(%(tenant_id)s) AS stored_bytes
