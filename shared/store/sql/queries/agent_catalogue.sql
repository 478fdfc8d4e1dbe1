-- The newest documents of agents in use, in the order of their names.
SELECT DISTINCT ON (name) name, document FROM agents
WHERE tenant_id = %(tenant_id)s AND retired_at IS NULL
ORDER BY name, version DESC
LIMIT %(limit)s
