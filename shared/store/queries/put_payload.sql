-- Stores bytes under their hash, or finds that somebody else just has.
INSERT INTO payloads (tenant_id, hash, size, body, preview)
VALUES (%(tenant_id)s, %(hash)s, %(size)s, %(body)s, %(preview)s)
ON CONFLICT (hash, tenant_id) DO UPDATE SET created_at = now()
