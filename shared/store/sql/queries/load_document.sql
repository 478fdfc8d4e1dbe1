-- Stores or replaces one document; its old passages go with it. Unchanged documents (same digest) come back as no row.
INSERT INTO documents (id, tenant_id, source, title, digest)
VALUES (%(id)s, %(tenant_id)s, %(source)s, %(title)s, %(digest)s)
ON CONFLICT (tenant_id, source) DO UPDATE SET title = excluded.title, digest = excluded.digest, loaded_at = planq_now()
WHERE documents.digest <> excluded.digest
RETURNING id
