-- A slice of a payload's bytes; `start` counts from 1.
SELECT substring(body FROM %(start)s::int FOR %(length)s::int) AS piece FROM payloads
WHERE tenant_id = %(tenant_id)s AND hash = %(hash)s AND body IS NOT NULL
