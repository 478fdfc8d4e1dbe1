-- Lets those who store a reminder for one user take turns until the transaction ends; other users do not wait.
SELECT pg_advisory_xact_lock(hashtextextended('planq.schedules/' || j.tenant_id || '/' || j.user_id, 0))
FROM jobs j WHERE j.id = %(job_id)s AND j.tenant_id = %(tenant_id)s
