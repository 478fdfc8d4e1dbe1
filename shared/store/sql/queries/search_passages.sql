-- Passages that share a word with the query, best first. Any word may match: a question is not a boolean formula.
WITH wanted AS (
    SELECT replace(plainto_tsquery('english', %(query)s)::text, '&', '|')::tsquery AS query
)
SELECT d.title, d.source, p.heading, p.body, ts_rank_cd(p.search, wanted.query, 1)::float8 AS score
FROM passages p JOIN documents d ON d.id = p.document_id, wanted
WHERE p.tenant_id = %(tenant_id)s AND p.search @@ wanted.query
ORDER BY score DESC, d.source, p.position LIMIT %(limit)s
