-- Keeps everybody else from changing a job until the transaction ends.
SELECT id FROM jobs WHERE id = %(job_id)s FOR NO KEY UPDATE
