-- Stores the passages of one document (a JSON array of {position, heading, body}).
INSERT INTO passages (document_id, position, tenant_id, heading, body)
SELECT %(document_id)s, p.position, %(tenant_id)s, p.heading, p.body
FROM json_to_recordset(%(passages)s) AS p (position int, heading text, body text)
