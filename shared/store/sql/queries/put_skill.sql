-- Stores a skill's text as the version after its newest one, unless that is the same text and in use; no row
-- where somebody stored a version at the same moment: look again.
WITH newest AS (
    SELECT version, digest, created_at, retired_at FROM skills
    WHERE tenant_id = %(tenant_id)s AND name = %(name)s ORDER BY version DESC LIMIT 1
), stored AS (
    INSERT INTO skills (tenant_id, name, version, text, digest)
    SELECT %(tenant_id)s, %(name)s, coalesce((SELECT version FROM newest), 0) + 1, %(content)s, %(digest)s
    WHERE NOT EXISTS (SELECT FROM newest WHERE digest = %(digest)s AND retired_at IS NULL)
    ON CONFLICT DO NOTHING
    RETURNING version, created_at
)
SELECT version, created_at, true AS is_new FROM stored
UNION ALL
SELECT version, created_at, false FROM newest WHERE digest = %(digest)s AND retired_at IS NULL
