-- What a job has made, without the bodies, in the order of its steps; one row without an artifact where it made none.
SELECT a.id, a.version, a.job_id, a.step_index, a.tool_name, a.skill_id, a.type, a.metadata, a.created_at
FROM jobs j LEFT JOIN artifacts a ON a.job_id = j.id
WHERE j.id = %(job_id)s AND j.tenant_id = %(tenant_id)s
ORDER BY a.step_index, a.id, a.version
