-- Just where a job stands, for waiting on it.
SELECT status FROM jobs WHERE id = %(id)s AND tenant_id = %(tenant_id)s
