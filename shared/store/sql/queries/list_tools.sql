-- Every tool that workers have published.
SELECT definition FROM tools WHERE tenant_id = %(tenant_id)s ORDER BY name
