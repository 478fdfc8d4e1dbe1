-- Secrets of tenants, sealed: nothing here can be read without the operator's master keys.

-- name: put_secret
-- Stores a secret of a tenant in the place of the one that it had; no row where there is no such tenant.
INSERT INTO tenant_secrets (tenant_id, name, key_id, sealed, created_at, updated_at)
SELECT t.id, %(name)s, %(key_id)s, %(sealed)s, planq_now(), planq_now() FROM tenants t WHERE t.id = %(tenant_id)s
ON CONFLICT (tenant_id, name) DO UPDATE
SET key_id = excluded.key_id, sealed = excluded.sealed, updated_at = excluded.updated_at

-- name: list_secrets
-- What a tenant keeps secret, without the secrets, and without what people gave as answers.
SELECT name, key_id, created_at, updated_at FROM tenant_secrets
WHERE tenant_id = %(tenant_id)s AND NOT starts_with(name, 'answer/') ORDER BY name

-- name: sealed_secrets
-- The sealed secrets of a tenant, without those that sign and those that people gave as answers.
SELECT name, key_id, sealed FROM tenant_secrets WHERE tenant_id = %(tenant_id)s AND NOT starts_with(name, 'webhook/') AND NOT starts_with(name, 'answer/')

-- name: sealed_answer
-- What a person gave as a secret, sealed; no row once the step that asked for it has ended.
SELECT key_id, sealed FROM tenant_secrets WHERE tenant_id = %(tenant_id)s AND name = %(name)s

-- name: remove_secret
-- Removes a secret of a tenant.
DELETE FROM tenant_secrets WHERE tenant_id = %(tenant_id)s AND name = %(name)s

-- name: secret_keys_in_use
-- The master keys under which secrets of all tenants lie, with how many there are.
SELECT key_id, count(*)::int AS secrets FROM tenant_secrets GROUP BY key_id

-- name: secrets_under_other_keys
-- The sealed secrets of all tenants whose master key is another one.
SELECT tenant_id, name, key_id, sealed FROM tenant_secrets WHERE key_id <> %(key_id)s ORDER BY tenant_id, name

-- name: reseal_secret
-- Replaces a sealed secret by one that was sealed anew, unless it has changed meanwhile.
UPDATE tenant_secrets SET key_id = %(key_id)s, sealed = %(sealed)s
WHERE tenant_id = %(tenant_id)s AND name = %(name)s AND sealed = %(seen)s

-- name: signing_secrets
-- The sealed secrets of a tenant that sign for somebody now, newest first.
SELECT name, key_id, sealed FROM tenant_secrets
WHERE tenant_id = %(tenant_id)s AND starts_with(name, %(prefix)s) AND (expires_at IS NULL OR expires_at > planq_now())
ORDER BY expires_at IS NOT NULL, created_at DESC

-- name: add_signing_secret
-- Stores the first secret that signs for somebody; nothing where somebody else has done so.
INSERT INTO tenant_secrets (tenant_id, name, key_id, sealed, created_at, updated_at)
SELECT %(tenant_id)s, %(name)s, %(key_id)s, %(sealed)s, planq_now(), planq_now()
WHERE NOT EXISTS (SELECT FROM tenant_secrets
                  WHERE tenant_id = %(tenant_id)s AND starts_with(name, %(prefix)s) AND expires_at IS NULL)

-- name: keep_signing_secret
-- Lets a secret that signed for somebody else do so here for a while.
INSERT INTO tenant_secrets (tenant_id, name, key_id, sealed, created_at, updated_at, expires_at)
VALUES (%(tenant_id)s, %(name)s, %(key_id)s, %(sealed)s, planq_now(), planq_now(), planq_now() + %(overlap)s)

-- name: lock_signing_secrets
-- Lets those who add a secret that signs for somebody take turns until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('planq.secrets/' || %(tenant_id)s || '/' || %(prefix)s, 0))

-- name: rotate_signing_secret
-- Stores another secret that signs for somebody; the one before goes on for a while, those before that one do not.
WITH outdated AS (
    DELETE FROM tenant_secrets
    WHERE tenant_id = %(tenant_id)s AND starts_with(name, %(prefix)s) AND expires_at IS NOT NULL
), kept AS (
    UPDATE tenant_secrets SET expires_at = planq_now() + %(overlap)s, updated_at = planq_now()
    WHERE tenant_id = %(tenant_id)s AND starts_with(name, %(prefix)s) AND expires_at IS NULL
)
INSERT INTO tenant_secrets (tenant_id, name, key_id, sealed, created_at, updated_at)
VALUES (%(tenant_id)s, %(name)s, %(key_id)s, %(sealed)s, planq_now(), planq_now())

-- name: tidy_secrets
-- Removes secrets whose time beside their successors is over.
DELETE FROM tenant_secrets WHERE expires_at < planq_now()
