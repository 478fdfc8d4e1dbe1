-- A page of a tenant's jobs, newest first, below the cursor (the last id of the page before).
SELECT * FROM jobs
WHERE tenant_id = %(tenant_id)s
  AND (%(status)s::text IS NULL OR status = %(status)s)
  AND (%(below)s::uuid IS NULL OR id < %(below)s)
ORDER BY id DESC LIMIT %(limit)s
