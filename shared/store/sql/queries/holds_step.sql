-- Whether an attempt still is the owner of its step: one row if so.
SELECT 1 AS held FROM steps
WHERE job_id = %(job_id)s AND round = %(round)s AND index = %(index)s AND attempt = %(attempt)s
  AND status = 'running' AND worker_id = %(worker_id)s
