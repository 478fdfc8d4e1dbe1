-- The process that ran a step has died, its worker lives: the next sweep takes the step back as from a lost worker.
UPDATE steps SET worker_id = NULL
WHERE job_id = %(job_id)s AND round = %(round)s AND index = %(index)s AND status = 'running'
  AND attempt = %(attempt)s AND worker_id = %(worker_id)s
