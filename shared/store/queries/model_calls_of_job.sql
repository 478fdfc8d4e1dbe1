-- The model calls of a job in order.
SELECT * FROM model_calls WHERE job_id = %(job_id)s ORDER BY id
