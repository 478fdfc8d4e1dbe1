-- Agents and skills: versions of documents and of instruction texts.

-- name: put_agent
-- Stores an agent's document as the version after its newest one, unless that is the same document and in use; no row
-- where somebody stored a version at the same moment: look again.
WITH newest AS (
    SELECT version, digest, created_at, retired_at FROM agents
    WHERE tenant_id = %(tenant_id)s AND name = %(name)s ORDER BY version DESC LIMIT 1
), stored AS (
    INSERT INTO agents (tenant_id, name, version, document, skills, strategy, loop_block, digest)
    SELECT %(tenant_id)s, %(name)s, coalesce((SELECT version FROM newest), 0) + 1, %(content)s::json, %(skills)s::text[],
           %(strategy)s, %(loop_block)s::json, %(digest)s
    WHERE NOT EXISTS (SELECT FROM newest WHERE digest = %(digest)s AND retired_at IS NULL)
    ON CONFLICT DO NOTHING
    RETURNING version, created_at
)
SELECT version, created_at, true AS is_new FROM stored
UNION ALL
SELECT version, created_at, false FROM newest WHERE digest = %(digest)s AND retired_at IS NULL

-- name: get_agent
-- One version of an agent, its newest that is not retired where none is named.
SELECT name, version, document::text AS content, created_at, retired_at FROM agents
WHERE tenant_id = %(tenant_id)s AND name = %(name)s
  AND (version = %(version)s::int OR (%(version)s::int IS NULL AND retired_at IS NULL))
ORDER BY version DESC LIMIT 1

-- name: list_agents
-- A page of a tenant's agents in the order of their names, after the one named: of each its newest version in use.
SELECT DISTINCT ON (name) name, version, document::text AS content, created_at, retired_at FROM agents
WHERE tenant_id = %(tenant_id)s AND retired_at IS NULL AND name > %(after)s
ORDER BY name, version DESC LIMIT %(limit)s

-- name: name_agents
-- The names of a tenant's agents in use, and the versions of the one named, for telling what there is.
SELECT ARRAY (SELECT DISTINCT name FROM agents WHERE tenant_id = %(tenant_id)s AND retired_at IS NULL
              ORDER BY name LIMIT %(limit)s) AS names,
       ARRAY (SELECT version FROM agents WHERE tenant_id = %(tenant_id)s AND name = %(name)s
              ORDER BY version DESC LIMIT %(limit)s) AS versions

-- name: pin_agents
-- Of each of these agents the newest version in use; no row for one that is not.
SELECT DISTINCT ON (name) name, version FROM agents
WHERE tenant_id = %(tenant_id)s AND name = ANY (%(names)s::text[]) AND retired_at IS NULL
ORDER BY name, version DESC

-- name: retire_agent
-- Takes an agent out of use, every version of it; what is retired already stays as it is.
UPDATE agents SET retired_at = planq_now() WHERE tenant_id = %(tenant_id)s AND name = %(name)s AND retired_at IS NULL

-- name: put_skill
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

-- name: get_skill
-- One version of a skill, its newest that is not retired where none is named.
SELECT name, version, text AS content, created_at, retired_at FROM skills
WHERE tenant_id = %(tenant_id)s AND name = %(name)s
  AND (version = %(version)s::int OR (%(version)s::int IS NULL AND retired_at IS NULL))
ORDER BY version DESC LIMIT 1

-- name: list_skills
-- A page of a tenant's skills in the order of their names, after the one named: of each its newest version in use.
SELECT DISTINCT ON (name) name, version, text AS content, created_at, retired_at FROM skills
WHERE tenant_id = %(tenant_id)s AND retired_at IS NULL AND name > %(after)s
ORDER BY name, version DESC LIMIT %(limit)s

-- name: name_skills
-- The names of a tenant's skills in use, and the versions of the one named, for telling what there is.
SELECT ARRAY (SELECT DISTINCT name FROM skills WHERE tenant_id = %(tenant_id)s AND retired_at IS NULL
              ORDER BY name LIMIT %(limit)s) AS names,
       ARRAY (SELECT version FROM skills WHERE tenant_id = %(tenant_id)s AND name = %(name)s
              ORDER BY version DESC LIMIT %(limit)s) AS versions

-- name: pin_skills
-- Of each of these skills the newest version in use; no row for one that is not.
SELECT DISTINCT ON (name) name, version FROM skills
WHERE tenant_id = %(tenant_id)s AND name = ANY (%(names)s::text[]) AND retired_at IS NULL
ORDER BY name, version DESC

-- name: retire_skill
-- Takes a skill out of use, every version of it; what is retired already stays as it is.
UPDATE skills SET retired_at = planq_now() WHERE tenant_id = %(tenant_id)s AND name = %(name)s AND retired_at IS NULL
