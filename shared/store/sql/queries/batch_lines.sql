-- Lines of batches that have ended, for their results: a page after a line, or after the end of one.

-- name: lines_by_input
SELECT line, custom_id, status, job_id, error, settled FROM batch_lines
WHERE batch_id = %(id)s AND tenant_id = %(tenant_id)s AND line > %(after)s
  AND status IN ('completed', 'failed', 'cancelled') AND (%(status)s::text IS NULL OR status = %(status)s)
ORDER BY line LIMIT %(limit)s

-- name: lines_by_completion
SELECT line, custom_id, status, job_id, error, settled FROM batch_lines
WHERE batch_id = %(id)s AND tenant_id = %(tenant_id)s AND settled IS NOT NULL AND settled > %(after)s
  AND status IN ('completed', 'failed', 'cancelled') AND (%(status)s::text IS NULL OR status = %(status)s)
ORDER BY settled LIMIT %(limit)s
