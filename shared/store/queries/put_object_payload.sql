-- Makes a written object the bytes of a payload; no row when the object has been given up meanwhile. If somebody else has
-- just stored the same bytes, the object stays without a payload and is collected.
WITH noted AS (
    UPDATE payload_objects SET created_at = now() WHERE location = %(location)s AND NOT is_doomed RETURNING location
)
INSERT INTO payloads (tenant_id, hash, size, location, preview)
SELECT %(tenant_id)s, %(hash)s, %(size)s, noted.location, %(preview)s::json FROM noted
ON CONFLICT (hash, tenant_id) DO UPDATE SET created_at = now()
