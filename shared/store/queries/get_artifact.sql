-- One artifact as its tool produced it.
SELECT id, job_id, step_index, tool_name, skill_id, type, body, created_at FROM artifacts
WHERE tenant_id = %(tenant_id)s AND id = %(id)s
