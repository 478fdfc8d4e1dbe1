-- Child jobs that ended a moment ago or longer, of which nobody has told their parents.
SELECT id FROM jobs
WHERE parent_job_id IS NOT NULL AND NOT is_joined AND status IN ('completed', 'failed', 'cancelled')
  AND finished_at <= planq_now() - planq_claim_grace()
ORDER BY id LIMIT %(limit)s
