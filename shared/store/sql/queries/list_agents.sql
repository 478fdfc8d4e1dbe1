-- A page of a tenant's agents in the order of their names, after the one named: of each its newest version in use.
SELECT DISTINCT ON (name) name, version, document::text AS content, created_at, retired_at FROM agents
WHERE tenant_id = %(tenant_id)s AND retired_at IS NULL AND name > %(after)s
ORDER BY name, version DESC LIMIT %(limit)s
