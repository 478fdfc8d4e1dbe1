-- One version of an artifact as its tool produced it, as text, the newest where none is named; of a large one the hash of
-- its payload.
SELECT id, version, job_id, step_index, skill_id, body::text AS body, payload_hash FROM artifacts
WHERE tenant_id = %(tenant_id)s AND id = %(id)s AND (%(version)s::int IS NULL OR version = %(version)s)
ORDER BY version DESC LIMIT 1
