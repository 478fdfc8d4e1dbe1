-- API keys: who speaks for which tenant, and what each allows.

-- name: create_api_key
-- Stores a key of a tenant; no row where there is no such tenant.
INSERT INTO api_keys (id, tenant_id, name, prefix, digest, scopes, expires_at, created_at)
SELECT %(id)s, t.id, %(name)s, %(prefix)s, %(digest)s, %(scopes)s::text[],
       planq_now() + make_interval(secs => %(seconds)s::float8), planq_now()
FROM tenants t WHERE t.id = %(tenant_id)s
RETURNING id, tenant_id, name, prefix, scopes, expires_at, revoked_at, last_used_at, created_at

-- name: list_api_keys
-- A page of a tenant's keys, the oldest first, after the one named; revoked and expired ones, too.
SELECT id, tenant_id, name, prefix, scopes, expires_at, revoked_at, last_used_at, created_at FROM api_keys
WHERE tenant_id = %(tenant_id)s AND (%(after)s::uuid IS NULL OR id > %(after)s) ORDER BY id LIMIT %(limit)s

-- name: revoke_api_key
-- Revokes a key of a tenant; one that is revoked keeps its time. No row where there is no such key.
UPDATE api_keys SET revoked_at = coalesce(revoked_at, planq_now()) WHERE tenant_id = %(tenant_id)s AND id = %(id)s
RETURNING id, tenant_id, name, prefix, scopes, expires_at, revoked_at, last_used_at, created_at

-- name: look_up_api_keys
-- The keys of these digests, whosever they are: the digest of 256 random bits names its tenant.
SELECT k.id, k.tenant_id, k.name, k.digest, k.scopes,
       CASE WHEN k.revoked_at IS NOT NULL THEN 'revoked' WHEN k.expires_at <= planq_now() THEN 'expired' END AS ended,
       t.is_disabled, k.last_used_at IS NULL OR k.last_used_at <= planq_now() - interval '1 minute' AS is_use_due
FROM api_keys k JOIN tenants t ON t.id = k.tenant_id WHERE k.digest = ANY (%(digests)s::bytea[])

-- name: note_api_key_use
-- Notes that a key is in use, at most once a minute, whichever processes say so.
UPDATE api_keys SET last_used_at = planq_now()
WHERE tenant_id = %(tenant_id)s AND id = %(id)s
  AND (last_used_at IS NULL OR last_used_at <= planq_now() - interval '1 minute')

-- name: end_session
-- Ends a session of the pages, and forgets those that would have ended by themselves by now.
WITH gone AS (DELETE FROM ended_sessions WHERE until <= planq_now())
INSERT INTO ended_sessions (nonce, until) VALUES (%(nonce)s, to_timestamp(%(until)s)) ON CONFLICT (nonce) DO NOTHING

-- name: look_up_ended_session
-- Whether a session of the pages was ended.
SELECT 1 FROM ended_sessions WHERE nonce = %(nonce)s

-- name: ended_sessions_among
-- Which of these sessions of the pages were ended.
SELECT nonce FROM ended_sessions WHERE nonce = ANY(%(nonces)s)
