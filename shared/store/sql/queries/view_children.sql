-- The child jobs of each of these jobs, those of all rounds and attempts, as one JSON array.
SELECT parent_job_id, json_agg(json_build_object(
           'id', id, 'step_index', parent_step_index, 'position', child_position, 'key', child_key,
           'agent', CASE WHEN agent_name IS NOT NULL
                    THEN json_build_object('name', agent_name, 'version', agent_version) END,
           'action', action, 'status', status)
       ORDER BY parent_round, parent_step_index, child_position, id)::text AS children
FROM jobs WHERE parent_job_id = ANY (%(ids)s::uuid[])
GROUP BY parent_job_id
