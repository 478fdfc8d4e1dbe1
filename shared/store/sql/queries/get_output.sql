-- A step's output as it is stored, of the job's present round; the status is null where the job has no such step.
SELECT s.status, s.output::text AS output, s.payload_hash
FROM jobs j LEFT JOIN steps s ON s.job_id = j.id AND s.round = j.round AND s.index = %(index)s
WHERE j.id = %(job_id)s AND j.tenant_id = %(tenant_id)s
