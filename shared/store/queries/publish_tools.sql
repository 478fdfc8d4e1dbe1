-- Publishes tool definitions (a JSON array of {name, definition}); unchanged ones only get a new date.
INSERT INTO tools (tenant_id, name, definition)
SELECT %(tenant_id)s, t.name, t.definition FROM json_to_recordset(%(tools)s) AS t (name text, definition json)
ORDER BY t.name
ON CONFLICT (tenant_id, name) DO UPDATE SET definition = excluded.definition, published_at = now()
