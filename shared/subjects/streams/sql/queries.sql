-- Live streams: who follows a job, and what models are saying in jobs that somebody follows.

-- name: watch_jobs
-- Says that somebody follows these jobs through a process, for so long from now.
INSERT INTO watches (job_id, process, until)
SELECT job_id, %(process)s, planq_now() + make_interval(secs => %(seconds)s)
FROM unnest(%(job_ids)s::uuid[]) AS w (job_id) ORDER BY job_id
ON CONFLICT (job_id, process) DO UPDATE SET until = excluded.until

-- name: unwatch_jobs
-- Says that nobody follows these jobs any more through a process.
DELETE FROM watches WHERE process = %(process)s AND job_id = ANY (%(job_ids)s)

-- name: followed_jobs
-- Those of these jobs that somebody follows. A join: to look each row up in a list takes as long as both are long.
SELECT job_id FROM unnest(%(job_ids)s::uuid[]) AS j (job_id)
WHERE EXISTS (SELECT FROM watches w WHERE w.job_id = j.job_id AND w.until > planq_now())

-- name: write_texts
-- Writes what came of texts: of each the piece from `start` on, where that is what follows the pieces that are there.
-- Yields of every text how many of its characters are there now. With its first piece a text takes the place of the older
-- ones of its job; what is older than those that are there is not written any more.
WITH given AS (
    SELECT t.*, coalesce((
        SELECT d.start + length(d.text) FROM text_deltas d
        WHERE d.job_id = t.job_id AND d.attempt = t.attempt AND d.try = t.try ORDER BY d.start DESC LIMIT 1
    ), 0) AS written
    FROM unnest(%(job_ids)s::uuid[], %(tenant_ids)s::text[], %(stages)s::text[], %(attempts)s::int[], %(tries)s::int[],
                %(starts)s::int[], %(pieces)s::text[]) AS t (job_id, tenant_id, stage, attempt, try, start, piece)
    WHERE NOT EXISTS (
        SELECT FROM text_deltas n WHERE n.job_id = t.job_id AND (n.attempt, n.try) > (t.attempt, t.try))
), replaced AS (
    DELETE FROM text_deltas d USING given g
    WHERE d.job_id = g.job_id AND (d.attempt, d.try) < (g.attempt, g.try) AND g.written = 0 AND g.start = 0
), added AS (
    INSERT INTO text_deltas (job_id, tenant_id, stage, attempt, try, start, text)
    SELECT job_id, tenant_id, stage, attempt, try, start, piece FROM given WHERE start = written
    ON CONFLICT DO NOTHING
    RETURNING job_id, attempt, try, start + length(text) AS written
)
SELECT g.job_id, g.attempt, g.try, coalesce(a.written, g.written) AS written
FROM given g LEFT JOIN added a USING (job_id, attempt, try)

-- name: live_texts
-- The newest text of each of some tenants' jobs, as far as transactions below its `below` have written it; no row for one
-- without. `n` is the place of the job in the lists, from 1.
SELECT a.n::int AS n, t.stage, t.attempt, t.try, t.text
FROM unnest(%(job_ids)s::uuid[], %(tenant_ids)s::text[], %(belows)s::text[])
    WITH ORDINALITY AS a (job_id, tenant_id, below, n)
CROSS JOIN LATERAL (
    SELECT d.stage, d.attempt, d.try, string_agg(d.text, '' ORDER BY d.start) AS text
    FROM text_deltas d WHERE d.job_id = a.job_id AND d.tenant_id = a.tenant_id AND d.xid < a.below::xid8
    GROUP BY d.stage, d.attempt, d.try ORDER BY d.attempt DESC, d.try DESC LIMIT 1
) t

-- name: tidy_texts
-- Removes texts that nobody adds to any more: no call of a model takes that long.
DELETE FROM text_deltas WHERE created_at < planq_now() - interval '1 hour'

-- name: tidy_watches
-- Removes what processes have left that do not follow any more.
DELETE FROM watches WHERE until < planq_now()
