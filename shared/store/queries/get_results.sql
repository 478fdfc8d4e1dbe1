-- The outcomes of the steps of one round that were begun and have ended, in plan order; of large outputs the preview.
SELECT s.index, s.tool_name, s.status, s.attempt, s.arguments, s.inputs, s.output, s.payload_hash, s.output_bytes,
       s.excerpts, p.preview, s.error, s.started_at, s.finished_at, s.asked_at
FROM steps s LEFT JOIN payloads p ON p.tenant_id = s.tenant_id AND p.hash = s.payload_hash
WHERE s.job_id = %(job_id)s AND s.round = %(round)s AND s.status IN ('succeeded', 'failed')
ORDER BY s.index
