-- Payloads: large values by their hash, in the database or in an object store.

-- name: put_payload
-- Stores bytes under their hash, instead of the object %(instead_of)s, which is not right, or finds that somebody else just
-- has.
INSERT INTO payloads AS p (tenant_id, hash, size, body, preview)
VALUES (%(tenant_id)s, %(hash)s, %(size)s, %(body)s, %(preview)s)
ON CONFLICT (hash, tenant_id) DO UPDATE SET created_at = planq_now(),
    body = CASE WHEN p.location = %(instead_of)s THEN excluded.body ELSE p.body END,
    location = CASE WHEN p.location = %(instead_of)s THEN NULL ELSE p.location END

-- name: put_object_payload
-- Makes a written object the bytes of a payload; no row when the object has been given up meanwhile. It replaces the object
-- %(instead_of)s, which is not right. If somebody else has just stored the same bytes, or replaced that one, the object
-- stays without a payload and is collected.
WITH noted AS (
    UPDATE payload_objects SET created_at = planq_now() WHERE location = %(location)s
      AND tenant_id = %(tenant_id)s AND NOT is_doomed RETURNING location
)
INSERT INTO payloads AS p (tenant_id, hash, size, location, preview)
SELECT %(tenant_id)s, %(hash)s, %(size)s, noted.location, %(preview)s::json FROM noted
ON CONFLICT (hash, tenant_id) DO UPDATE SET created_at = planq_now(),
    location = CASE WHEN p.location = %(instead_of)s THEN excluded.location ELSE p.location END

-- name: touch_payload
-- The bytes are there already, if they are right: from now on nobody collects them for an hour. No row, no bytes.
UPDATE payloads SET created_at = planq_now() WHERE tenant_id = %(tenant_id)s AND hash = %(hash)s RETURNING size, location

-- name: find_payload
-- How large a payload is and where its bytes lie; the location is null where they lie in the row.
SELECT size, location FROM payloads WHERE tenant_id = %(tenant_id)s AND hash = %(hash)s

-- name: read_payload
-- A slice of a payload's bytes; `start` counts from 1.
SELECT substring(body FROM %(start)s::int FOR %(length)s::int) AS piece FROM payloads
WHERE tenant_id = %(tenant_id)s AND hash = %(hash)s AND body IS NOT NULL

-- name: count_objects
-- How many payloads are in an object store, at most %(most)s.
SELECT count(*)::int AS count FROM (SELECT FROM payload_objects WHERE NOT is_doomed LIMIT %(most)s) AS o

-- name: note_object
-- An object is about to be written: whatever happens, it will be found.
INSERT INTO payload_objects (location, tenant_id) VALUES (%(location)s, %(tenant_id)s)

-- name: mark_objects
-- Objects that are no payload's bytes and were noted a while ago: from now on no put refers to them. Those that were
-- doomed before, and whose remover died, come again.
WITH old AS MATERIALIZED (  -- a join may look for others again and again
    SELECT o.location FROM payload_objects o
    WHERE o.created_at < planq_now() - make_interval(secs => %(seconds)s)
      AND NOT EXISTS (SELECT 1 FROM payloads p WHERE p.location = o.location)
    ORDER BY o.created_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE payload_objects d SET is_doomed = true FROM old WHERE d.location = old.location
RETURNING d.location

-- name: forget_objects
-- These objects have been removed.
DELETE FROM payload_objects WHERE location = ANY (%(locations)s) AND is_doomed

-- name: collect_payloads
-- Removes those of the next so many payloads, behind a place, that nothing refers to and nobody has touched for a while; yields how
-- many, and the place of the last that was looked at. No row where there is none. A transaction that makes a reference touches the
-- row in the same transaction: then the row is locked and skipped, or fresh when it is looked at again under the lock.
WITH page AS MATERIALIZED (
    SELECT hash, tenant_id, created_at FROM payloads
    WHERE created_at < planq_now() - make_interval(secs => %(seconds)s)
      AND (created_at, hash, tenant_id) > (%(created_at)s::timestamptz, %(hash)s::bytea, %(tenant_id)s::text)
    ORDER BY created_at, hash, tenant_id LIMIT %(limit)s
), old AS MATERIALIZED (  -- see mark_objects
    SELECT p.hash, p.tenant_id FROM page JOIN payloads p ON p.hash = page.hash AND p.tenant_id = page.tenant_id
    WHERE planq_now() - p.created_at > make_interval(secs => %(seconds)s)  -- as above, but no index is to find all of them
      AND NOT EXISTS (SELECT 1 FROM steps s WHERE s.payload_hash = p.hash AND s.tenant_id = p.tenant_id)
      AND NOT EXISTS (SELECT 1 FROM artifacts a WHERE a.payload_hash = p.hash AND a.tenant_id = p.tenant_id)
      AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.tenant_id = p.tenant_id
                      AND j.parts @> jsonb_build_array(jsonb_build_object('sha256', encode(p.hash, 'hex'))))
      AND NOT EXISTS (SELECT 1 FROM batch_lines l WHERE l.tenant_id = p.tenant_id
                      AND l.parts @> jsonb_build_array(jsonb_build_object('sha256', encode(p.hash, 'hex'))))
    FOR UPDATE OF p SKIP LOCKED
), gone AS (
    DELETE FROM payloads d USING old WHERE d.hash = old.hash AND d.tenant_id = old.tenant_id RETURNING d.hash
)
SELECT created_at, hash, tenant_id, (SELECT count(*) FROM gone)::int AS removed FROM page
ORDER BY page.created_at DESC, page.hash DESC, page.tenant_id DESC LIMIT 1

-- name: count_unused_payloads
-- How many payloads nothing refers to and nobody has touched for a while, at most `most`.
SELECT count(*)::int AS count FROM (
    SELECT FROM payloads p WHERE p.created_at < planq_now() - make_interval(secs => %(seconds)s)
      AND NOT EXISTS (SELECT FROM steps s WHERE s.payload_hash = p.hash AND s.tenant_id = p.tenant_id)
      AND NOT EXISTS (SELECT FROM artifacts a WHERE a.payload_hash = p.hash AND a.tenant_id = p.tenant_id)
      AND NOT EXISTS (SELECT FROM jobs j WHERE j.tenant_id = p.tenant_id
                      AND j.parts @> jsonb_build_array(jsonb_build_object('sha256', encode(p.hash, 'hex'))))
      AND NOT EXISTS (SELECT FROM batch_lines l WHERE l.tenant_id = p.tenant_id
                      AND l.parts @> jsonb_build_array(jsonb_build_object('sha256', encode(p.hash, 'hex'))))
    ORDER BY p.created_at LIMIT %(most)s
) due

-- name: lock_stored_bytes
-- Lets those who have stored something of one tenant take turns in looking whether it fits, until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('planq.stored/' || %(tenant_id)s, 0))

-- name: stored_bytes
-- How many bytes a tenant keeps, and how many it may.
SELECT planq_stored_bytes(t.id) AS bytes, coalesce((t.config ->> 'max_stored_bytes')::bigint, %(most)s::bigint) AS most
FROM tenants t WHERE t.id = %(tenant_id)s

-- name: tidy_stored_bytes
-- Adds up what has changed in the bytes that tenants keep; what is just being written stays for the next time.
WITH moved AS (
    DELETE FROM stored_byte_changes WHERE id = ANY (ARRAY(
        SELECT id FROM stored_byte_changes ORDER BY id LIMIT 100000 FOR UPDATE SKIP LOCKED
    )) RETURNING tenant_id, bytes
)
INSERT INTO stored_bytes AS s (tenant_id, bytes) SELECT tenant_id, sum(bytes) FROM moved GROUP BY tenant_id ORDER BY tenant_id
ON CONFLICT (tenant_id) DO UPDATE SET bytes = s.bytes + excluded.bytes
