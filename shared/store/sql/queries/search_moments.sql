-- A user's moments that share a word with the query, best first, then newest: those that have all tags and begin in a
-- time. Any word may match, as in search_passages.
WITH wanted AS (
    SELECT replace(plainto_tsquery('english', %(query)s)::text, '&', '|')::tsquery AS query
)
SELECT m.id, m.name, m.summary, m.body, m.starts_at, m.ends_at, m.tags,
       ts_rank_cd(m.search, wanted.query, 1)::float8 AS score
FROM moments m, wanted
WHERE m.tenant_id = %(tenant_id)s AND m.user_id = %(user_id)s AND m.search @@ wanted.query
  AND m.tags @> %(tags)s::text[]
  AND m.starts_at >= coalesce(%(since)s::timestamptz, '-infinity')
  AND m.starts_at < coalesce(%(until)s::timestamptz, 'infinity')
ORDER BY score DESC, m.starts_at DESC, m.id LIMIT %(limit)s
