-- Knowledge: documents, and the passages that searches find.

-- name: load_document
-- Stores or replaces one document; its old passages go with it. Unchanged documents (same digest) come back as no row.
INSERT INTO documents (id, tenant_id, source, title, digest)
VALUES (%(id)s, %(tenant_id)s, %(source)s, %(title)s, %(digest)s)
ON CONFLICT (tenant_id, source) DO UPDATE SET title = excluded.title, digest = excluded.digest, loaded_at = planq_now()
WHERE documents.digest <> excluded.digest
RETURNING id

-- name: drop_passages
-- Removes the passages of a document that is about to be replaced.
DELETE FROM passages WHERE document_id = %(document_id)s AND tenant_id = %(tenant_id)s

-- name: load_passages
-- Stores the passages of one document (a JSON array of {position, heading, body}).
INSERT INTO passages (document_id, position, tenant_id, heading, body)
SELECT %(document_id)s, p.position, %(tenant_id)s, p.heading, p.body
FROM json_to_recordset(%(passages)s) AS p (position int, heading text, body text)

-- name: search_passages
-- Passages that share a word with the query, best first. Any word may match: a question is not a boolean formula. A
-- tenant finds documents of its own and those that are for all tenants (''), of which its configuration may name the
-- beginnings of the sources.
WITH wanted AS (
    SELECT replace(plainto_tsquery('english', %(query)s)::text, '&', '|')::tsquery AS query
)
SELECT d.title, d.source, p.heading, p.body, ts_rank_cd(p.search, wanted.query, 1)::float8 AS score
FROM passages p JOIN documents d ON d.id = p.document_id JOIN tenants t ON t.id = %(tenant_id)s, wanted
WHERE p.tenant_id IN (%(tenant_id)s, '') AND p.search @@ wanted.query
  AND (p.tenant_id <> '' OR t.config ->> 'knowledge_prefixes' IS NULL OR EXISTS (
      SELECT FROM json_array_elements_text(t.config -> 'knowledge_prefixes') AS k (prefix)
      WHERE starts_with(d.source, k.prefix)))
ORDER BY score DESC, d.source, p.position LIMIT %(limit)s
