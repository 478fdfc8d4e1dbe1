-- Keeps everybody else from changing a job until the transaction ends; no row where there is none.
SELECT id FROM jobs WHERE id = %(job_id)s AND tenant_id = %(tenant_id)s FOR UPDATE
