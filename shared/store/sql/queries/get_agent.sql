-- One version of an agent, its newest that is not retired where none is named.
SELECT name, version, document::text AS content, created_at, retired_at FROM agents
WHERE tenant_id = %(tenant_id)s AND name = %(name)s
  AND (version = %(version)s::int OR (%(version)s::int IS NULL AND retired_at IS NULL))
ORDER BY version DESC LIMIT 1
