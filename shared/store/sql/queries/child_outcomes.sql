-- How the child jobs stand of the steps %(first)s to %(last)s of a round, those of each step's last attempt, in the order
-- in which they were asked for.
SELECT c.parent_step_index, c.id, c.child_position, c.child_key, c.agent_name, c.action, c.status, c.output, c.answer,
       c.chained, c.error, c.finished_at,
       extract(epoch FROM coalesce(c.finished_at, planq_now()) - coalesce(c.started_at, c.created_at))::float8 AS seconds
FROM steps s CROSS JOIN LATERAL unnest(s.children) AS u (id) JOIN jobs c ON c.id = u.id
WHERE s.job_id = %(job_id)s AND s.round = %(round)s AND s.index BETWEEN %(first)s AND %(last)s
ORDER BY c.parent_step_index, c.child_position
