-- The job that a tenant submitted under an idempotency key.
SELECT id, request_hash FROM jobs WHERE tenant_id = %(tenant_id)s AND idempotency_key = %(idempotency_key)s
