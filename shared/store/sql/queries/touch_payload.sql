-- The bytes are there already, if they are right: from now on nobody collects them for an hour. No row, no bytes.
UPDATE payloads SET created_at = planq_now() WHERE tenant_id = %(tenant_id)s AND hash = %(hash)s RETURNING size, location
