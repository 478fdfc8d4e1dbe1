-- Secrets of tenants, sealed: nothing here can be read without the operator's master keys.

-- name: put_secret
-- Stores a secret of a tenant in the place of the one that it had; no row where there is no such tenant.
INSERT INTO tenant_secrets (tenant_id, name, key_id, sealed, created_at, updated_at)
SELECT t.id, %(name)s, %(key_id)s, %(sealed)s, planq_now(), planq_now() FROM tenants t WHERE t.id = %(tenant_id)s
ON CONFLICT (tenant_id, name) DO UPDATE
SET key_id = excluded.key_id, sealed = excluded.sealed, updated_at = excluded.updated_at

-- name: list_secrets
-- What a tenant keeps secret, without the secrets.
SELECT name, key_id, created_at, updated_at FROM tenant_secrets WHERE tenant_id = %(tenant_id)s ORDER BY name

-- name: sealed_secrets
-- The sealed secrets of a tenant.
SELECT name, key_id, sealed FROM tenant_secrets WHERE tenant_id = %(tenant_id)s

-- name: remove_secret
-- Removes a secret of a tenant.
DELETE FROM tenant_secrets WHERE tenant_id = %(tenant_id)s AND name = %(name)s

-- name: secrets_under_other_keys
-- The sealed secrets of all tenants whose master key is another one.
SELECT tenant_id, name, key_id, sealed FROM tenant_secrets WHERE key_id <> %(key_id)s ORDER BY tenant_id, name

-- name: reseal_secret
-- Replaces a sealed secret by one that was sealed anew, unless it has changed meanwhile.
UPDATE tenant_secrets SET key_id = %(key_id)s, sealed = %(sealed)s
WHERE tenant_id = %(tenant_id)s AND name = %(name)s AND sealed = %(seen)s
