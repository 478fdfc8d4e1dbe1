-- Publishes tool definitions (a JSON array of {name, definition}, the latter a text that holds JSON: see
-- planq_record_calls); unchanged ones only get a new date.
INSERT INTO tools (tenant_id, name, definition)
SELECT %(tenant_id)s, t.name, t.definition::json
FROM json_to_recordset(%(tools)s) AS t (name text, definition text)
ORDER BY t.name
ON CONFLICT (tenant_id, name) DO UPDATE SET definition = excluded.definition, published_at = planq_now()
