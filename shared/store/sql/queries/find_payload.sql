-- How large a payload is and where its bytes lie; the location is null where they lie in the row.
SELECT size, location FROM payloads WHERE tenant_id = %(tenant_id)s AND hash = %(hash)s
