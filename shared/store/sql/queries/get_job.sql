-- One job with the plan of its present round.
SELECT j.*, p.source AS plan_source, p.body AS plan_body, p.errors AS plan_errors
FROM jobs j LEFT JOIN plans p ON p.job_id = j.id AND p.round = j.round
WHERE j.id = %(id)s AND j.tenant_id = %(tenant_id)s
