-- Lines of batches, for the results of these.

-- name: lines_by_input
-- A page of the lines that have ended, in the order of the file.
SELECT line, custom_id, status, job_id, error, settled FROM batch_lines
WHERE batch_id = %(id)s AND tenant_id = %(tenant_id)s AND line > %(after)s
  AND status IN ('completed', 'failed', 'cancelled') AND (%(status)s::text IS NULL OR status = %(status)s)
ORDER BY line LIMIT %(limit)s

-- name: lines_by_completion
-- A page of the lines that have ended, in the order in which they did.
SELECT line, custom_id, status, job_id, error, settled FROM batch_lines
WHERE batch_id = %(id)s AND tenant_id = %(tenant_id)s AND settled IS NOT NULL AND settled > %(after)s
  AND status IN ('completed', 'failed', 'cancelled') AND (%(status)s::text IS NULL OR status = %(status)s)
ORDER BY settled LIMIT %(limit)s
