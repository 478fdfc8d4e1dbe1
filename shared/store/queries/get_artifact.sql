-- One artifact as its tool produced it, as text; of a large one the hash of its payload.
SELECT id, job_id, step_index, tool_name, skill_id, type, body::text AS body, payload_hash, created_at FROM artifacts
WHERE tenant_id = %(tenant_id)s AND id = %(id)s
