-- Renews a worker's lease; database time decides. A worker whose row was swept is not resurrected: no row comes back.
UPDATE workers SET heartbeat_at = planq_now(), lag_ms = %(lag_ms)s, in_flight = %(in_flight)s,
    late_outcomes = %(late_outcomes)s, counts = %(counts)s
WHERE id = %(id)s RETURNING id
