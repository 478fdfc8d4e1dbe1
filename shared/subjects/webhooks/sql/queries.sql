-- Webhooks: the endpoints of tenants, and what was delivered.

-- name: lock_endpoints
-- Lets those who add endpoints to one tenant take turns until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('planq.endpoints/' || %(tenant_id)s, 0))

-- name: create_endpoint
-- Stores an endpoint, and says how many others the tenant has; no row where it has `most` of them.
INSERT INTO endpoints (id, tenant_id, url, events, description, created_at, updated_at)
SELECT %(id)s, %(tenant_id)s, %(url)s, %(events)s, %(description)s, planq_now(), planq_now()
WHERE (SELECT count(*) FROM endpoints WHERE tenant_id = %(tenant_id)s) < %(most)s
RETURNING id, url, events, description, is_disabled, disabled_reason, created_at, updated_at,
    (SELECT count(*) FROM endpoints o WHERE o.tenant_id = %(tenant_id)s) AS others

-- name: change_endpoint
-- Replaces what is not null of an endpoint. What waits for one that is disabled has failed, up to 1000 of it (`dropped`).
WITH changed AS (
    UPDATE endpoints SET url = coalesce(%(url)s, url), events = coalesce(%(events)s::text[], events),
        description = coalesce(%(description)s, description), is_disabled = coalesce(%(is_disabled)s, is_disabled),
        disabled_reason = CASE WHEN %(is_disabled)s IS NULL THEN disabled_reason END, updated_at = planq_now()
    WHERE tenant_id = %(tenant_id)s AND id = %(id)s
    RETURNING id, url, events, description, is_disabled, disabled_reason, created_at, updated_at
)
SELECT c.*, CASE WHEN c.is_disabled THEN planq_drop_waiting(%(tenant_id)s, c.id) END AS dropped FROM changed c

-- name: purge_endpoint
-- Removes up to `limit` deliveries of an endpoint that is disabled.
DELETE FROM deliveries WHERE tenant_id = %(tenant_id)s AND id = ANY (ARRAY(
    SELECT d.id FROM deliveries d JOIN endpoints e ON e.id = d.endpoint_id
    WHERE d.endpoint_id = %(id)s AND e.tenant_id = %(tenant_id)s AND e.is_disabled LIMIT %(limit)s
))

-- name: delete_endpoint
-- Removes an endpoint and its secrets; what is left of its deliveries goes with it. Yields its id.
WITH gone AS (
    DELETE FROM endpoints WHERE tenant_id = %(tenant_id)s AND id = %(id)s RETURNING id
), secrets AS (
    DELETE FROM tenant_secrets
    WHERE tenant_id = %(tenant_id)s AND starts_with(name, 'webhook/' || (SELECT id FROM gone)::text || '/')
)
SELECT id FROM gone

-- name: test_endpoint
-- Writes a delivery to one endpoint, whatever it wants to be told; no row where there is none, or it is disabled.
INSERT INTO deliveries (id, tenant_id, endpoint_id, recipient, event, body, run_at, created_at)
SELECT planq_new_id(), e.tenant_id, e.id, e.id::text, 'endpoint.test', json_build_object(
    'type', 'endpoint.test', 'timestamp', planq_shown_time(planq_now()), 'data', %(data)s::json)::text,
    planq_now(), planq_now()
FROM (
    SELECT id, tenant_id FROM endpoints
    WHERE tenant_id = %(tenant_id)s AND id = %(id)s AND NOT is_disabled FOR SHARE SKIP LOCKED
) e
RETURNING id

-- name: sweep_look/deliveries
-- What planq_claim_deliveries would take, or make due because its worker was lost.
SELECT 'deliveries', NULL, NULL WHERE EXISTS (
    SELECT FROM deliveries d
    WHERE d.status IN ('pending', 'sending') AND d.run_at <= planq_now()
      AND NOT EXISTS (
        SELECT FROM deliveries b
        WHERE b.conversation_id = d.conversation_id AND b.tenant_id = d.tenant_id AND b.status IN ('pending', 'sending')
          AND (b.created_at, b.id) < (d.created_at, d.id))
      AND NOT EXISTS (
        SELECT FROM channels h WHERE h.tenant_id = d.tenant_id AND h.name = d.channel AND h.paused_until > planq_now())
) OR EXISTS (
    SELECT FROM deliveries d WHERE d.status = 'sending' AND d.run_at > planq_now() AND NOT EXISTS (
        SELECT FROM workers w
        WHERE w.id = d.worker_id AND w.heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s))
)
