-- Objects that are no payload's bytes and were noted a while ago: from now on no put refers to them. Those that were
-- doomed before, and whose remover died, come again.
UPDATE payload_objects d SET is_doomed = true
FROM (
    SELECT o.location FROM payload_objects o
    WHERE o.created_at < planq_now() - make_interval(secs => %(seconds)s)
      AND NOT EXISTS (SELECT 1 FROM payloads p WHERE p.location = o.location)
    ORDER BY o.created_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
) o
WHERE d.location = o.location
RETURNING d.location
