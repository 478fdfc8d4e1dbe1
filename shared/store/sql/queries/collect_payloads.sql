-- Removes payloads that nothing refers to and nobody has touched for a while. Whoever makes a reference touches the row in
-- the same transaction: then the row is locked and skipped, or fresh when it is looked at again under the lock.
DELETE FROM payloads d USING (
    SELECT p.hash, p.tenant_id FROM payloads p
    WHERE p.created_at < planq_now() - make_interval(secs => %(seconds)s)
      AND NOT EXISTS (SELECT 1 FROM steps s WHERE s.payload_hash = p.hash AND s.tenant_id = p.tenant_id)
      AND NOT EXISTS (SELECT 1 FROM artifacts a WHERE a.payload_hash = p.hash AND a.tenant_id = p.tenant_id)
    ORDER BY p.created_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
) p
WHERE d.hash = p.hash AND d.tenant_id = p.tenant_id
