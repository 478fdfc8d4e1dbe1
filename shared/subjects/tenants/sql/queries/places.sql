-- Places of tenants: how many streams and waits each API process holds for a tenant now. Each says so for itself, again and
-- again before `until`; the places of one that is gone are free then.

-- name: lock_places
-- Lets those who take places of one kind of one tenant take turns until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('planq.places/' || %(tenant_id)s || '/' || %(kind)s, 0))

-- name: take_places
-- Gives a process that holds `held` places up to `wanted` more, as long as all processes together hold no more than `most`.
-- Yields how many it holds then, and how many the others do.
WITH others AS (
    SELECT coalesce(sum(held), 0)::int AS held FROM tenant_places
    WHERE tenant_id = %(tenant_id)s AND kind = %(kind)s AND process <> %(process)s AND until > planq_now()
)
INSERT INTO tenant_places (tenant_id, kind, process, held, until)
SELECT %(tenant_id)s, %(kind)s, %(process)s,
       greatest(least(%(held)s::int + %(wanted)s::int, %(most)s::int - others.held), %(held)s::int),
       planq_clock() + make_interval(secs => %(seconds)s)
FROM others
ON CONFLICT (tenant_id, kind, process) DO UPDATE SET held = excluded.held, until = excluded.until
RETURNING held, (SELECT o.held FROM others o) AS elsewhere

-- name: keep_places
-- Says what a process holds, of all tenants, for some seconds more; what it does not name it has given up. Yields how many
-- places the others hold of the same tenants.
WITH mine AS (
    SELECT * FROM unnest(%(tenant_ids)s::text[], %(kinds)s::text[], %(held)s::int[]) AS m (tenant_id, kind, held)
), gone AS (
    DELETE FROM tenant_places p WHERE p.process = %(process)s
    AND NOT EXISTS (SELECT FROM mine m WHERE (m.tenant_id, m.kind) = (p.tenant_id, p.kind))
), kept AS (
    INSERT INTO tenant_places (tenant_id, kind, process, held, until)
    SELECT tenant_id, kind, %(process)s, held, planq_clock() + make_interval(secs => %(seconds)s) FROM mine
    ON CONFLICT (tenant_id, kind, process) DO UPDATE SET held = excluded.held, until = excluded.until
)
SELECT m.tenant_id, m.kind, coalesce((
    SELECT sum(p.held) FROM tenant_places p
    WHERE p.tenant_id = m.tenant_id AND p.kind = m.kind AND p.process <> %(process)s AND p.until > planq_now()
), 0)::int AS elsewhere
FROM mine m

-- name: forget_places
-- Removes what processes have left that are gone, beside those who are just writing.
DELETE FROM tenant_places WHERE (tenant_id, kind, process) IN (
    SELECT tenant_id, kind, process FROM tenant_places WHERE until <= planq_now() FOR UPDATE SKIP LOCKED
)
