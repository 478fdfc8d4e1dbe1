-- Of each of these agents the newest version in use; no row for one that is not.
SELECT DISTINCT ON (name) name, version FROM agents
WHERE tenant_id = %(tenant_id)s AND name = ANY (%(names)s::text[]) AND retired_at IS NULL
ORDER BY name, version DESC
