-- A user's moments, newest first: those that have all tags and begin in a time.
SELECT id, name, summary, body, starts_at, ends_at, tags, 0::float8 AS score FROM moments
WHERE tenant_id = %(tenant_id)s AND user_id = %(user_id)s AND tags @> %(tags)s::text[]
  AND starts_at >= coalesce(%(since)s::timestamptz, '-infinity')
  AND starts_at < coalesce(%(until)s::timestamptz, 'infinity')
ORDER BY starts_at DESC, id LIMIT %(limit)s
