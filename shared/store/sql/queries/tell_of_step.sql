-- Appends an event of a step to its job's stream, once for each kind, as long as the attempt that tells it runs. The
-- job is locked. One row: `ran` says whether it runs.
WITH running AS (
    SELECT tenant_id, job_id FROM steps
    WHERE job_id = %(job_id)s AND round = %(round)s AND index = %(index)s AND attempt = %(attempt)s
      AND status = 'running'
), told AS (
    INSERT INTO events (tenant_id, job_id, kind, data)
    SELECT r.tenant_id, r.job_id, %(kind)s, %(data)s FROM running r
    WHERE NOT EXISTS (
        SELECT FROM events e WHERE e.job_id = r.job_id AND e.kind = %(kind)s
          AND (e.data ->> 'round')::int = %(round)s AND (e.data ->> 'index')::int = %(index)s
    )
)
SELECT EXISTS (SELECT FROM running) AS ran
