-- Saves moments (a JSON array whose `body` are texts that hold JSON); those that are there already stay as they are.
INSERT INTO moments (tenant_id, id, user_id, name, summary, body, starts_at, ends_at, tags)
SELECT %(tenant_id)s, m.id, %(user_id)s, m.name, m.summary, m.body::json, coalesce(m.starts_at, planq_now()), m.ends_at,
       m.tags
FROM json_to_recordset(%(moments)s) AS m (
    id uuid, name text, summary text, body text, starts_at timestamptz, ends_at timestamptz, tags text[]
)
ON CONFLICT (tenant_id, id) DO NOTHING
