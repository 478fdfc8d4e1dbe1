-- Stores bytes under their hash, instead of the object %(instead_of)s, which is not right, or finds that somebody else just
-- has.
INSERT INTO payloads AS p (tenant_id, hash, size, body, preview)
VALUES (%(tenant_id)s, %(hash)s, %(size)s, %(body)s, %(preview)s)
ON CONFLICT (hash, tenant_id) DO UPDATE SET created_at = planq_now(),
    body = CASE WHEN p.location = %(instead_of)s THEN excluded.body ELSE p.body END,
    location = CASE WHEN p.location = %(instead_of)s THEN NULL ELSE p.location END
