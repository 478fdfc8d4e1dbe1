-- Every tool that workers have published.
SELECT kind, definition FROM tools WHERE tenant_id = %(tenant_id)s ORDER BY name
