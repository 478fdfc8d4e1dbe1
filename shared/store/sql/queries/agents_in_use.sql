-- The newest documents in use of some agents.
SELECT DISTINCT ON (name) name, document FROM agents
WHERE tenant_id = %(tenant_id)s AND name = ANY (%(names)s) AND retired_at IS NULL
ORDER BY name, version DESC
