-- The event log, read in the order of its transactions; see shared/domain/streams/position.py. What is read lies below
-- every transaction that is still open, in the snapshot of the statement itself.

-- name: events_of_job
-- The events of a tenant's job after a position, the first so many of them.
SELECT xid::text, sequence, job_id, kind, data::text AS data, created_at FROM events
WHERE job_id = %(job_id)s AND tenant_id = %(tenant_id)s
  AND (xid, sequence) > (%(xid)s::text::xid8, %(sequence)s)
  AND xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY xid, sequence LIMIT %(limit)s

-- name: events_ahead
-- How many events come from transactions that this server has not had yet: those of a backup of another one.
SELECT count(*)::int AS n FROM events WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())
