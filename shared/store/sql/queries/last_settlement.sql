-- What was said last of a call that was cut off, in the job's present round; `code` is of the step's error, if any.
SELECT e.data ->> 'outcome' AS outcome, s.error ->> 'code' AS code
FROM jobs j
JOIN steps s ON s.job_id = j.id AND s.round = j.round AND s.index = %(index)s
JOIN events e ON e.job_id = j.id AND e.kind = 'step_settled'
WHERE j.id = %(job_id)s AND j.tenant_id = %(tenant_id)s
    AND (e.data ->> 'index')::int = s.index AND (e.data ->> 'round')::int = s.round
ORDER BY e.sequence DESC LIMIT 1
