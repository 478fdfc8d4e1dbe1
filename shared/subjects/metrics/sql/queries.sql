-- Tallies: what `/metrics` counts for the whole installation (functions/tally.sql).

-- name: counted_by_all
-- Every tally, and what each worker has counted whose row is there, be it alive or not: in one statement, so that a worker whose
-- row goes meanwhile counts once.
SELECT name, labels, number, NULL::json AS counts FROM tallies
UNION ALL
SELECT NULL, NULL, late_outcomes, counts FROM workers

-- name: hold_report
-- Gives a process the report for %(seconds)s, so that a sum over processes is right; no change where another one has it.
INSERT INTO report_leases AS l (id, held_by, held_until)
VALUES (1, %(holder)s, planq_now() + make_interval(secs => %(seconds)s))
ON CONFLICT (id) DO UPDATE SET held_by = excluded.held_by, held_until = excluded.held_until
WHERE l.held_by = excluded.held_by OR l.held_until <= planq_now()

-- name: drop_report
-- A process that ends gives the report up, so that another one has it with the next scrape.
DELETE FROM report_leases WHERE held_by = %(holder)s
