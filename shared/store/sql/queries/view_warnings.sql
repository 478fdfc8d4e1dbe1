-- What callers are warned of in jobs of agents: the events of these kinds, as one JSON array for each job that has some.
SELECT e.job_id, json_agg(json_build_object('kind', e.kind, 'data', e.data) ORDER BY e.sequence) AS warnings
FROM unnest(%(ids)s::uuid[]) AS w (id)
CROSS JOIN LATERAL (
    SELECT job_id, kind, data, sequence FROM events
    WHERE job_id = w.id AND kind = ANY (%(kinds)s::text[]) OFFSET 0
) e
GROUP BY e.job_id
