-- What callers see of jobs; see planq_view_jobs.
SELECT * FROM planq_view_jobs(%(ids)s::uuid[], %(tenant_ids)s::text[], %(wanted)s::bool[], %(ended)s::text[], %(steps)s)
