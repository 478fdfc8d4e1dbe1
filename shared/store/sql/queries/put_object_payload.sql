-- Makes a written object the bytes of a payload; no row when the object has been given up meanwhile. It replaces the object
-- %(instead_of)s, which is not right. If somebody else has just stored the same bytes, or replaced that one, the object
-- stays without a payload and is collected.
WITH noted AS (
    UPDATE payload_objects SET created_at = planq_now() WHERE location = %(location)s AND NOT is_doomed RETURNING location
)
INSERT INTO payloads AS p (tenant_id, hash, size, location, preview)
SELECT %(tenant_id)s, %(hash)s, %(size)s, noted.location, %(preview)s::json FROM noted
ON CONFLICT (hash, tenant_id) DO UPDATE SET created_at = planq_now(),
    location = CASE WHEN p.location = %(instead_of)s THEN excluded.location ELSE p.location END
