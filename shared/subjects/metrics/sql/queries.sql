-- Tallies: what `/metrics` counts for the whole installation (functions/tally.sql).

-- name: counted_by_all
-- Every tally, and what each worker has counted whose row is there, be it alive or not: in one statement, so that a worker whose
-- row goes meanwhile counts once.
SELECT name, labels, number, NULL::json AS counts FROM tallies
UNION ALL
SELECT NULL, NULL, late_outcomes, counts FROM workers

-- name: drop_report
-- A process that ends gives the report up, so that another one has it with the next scrape.
DELETE FROM report_leases WHERE held_by = %(holder)s
