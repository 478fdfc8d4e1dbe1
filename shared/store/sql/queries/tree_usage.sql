-- What all jobs below a job have used.
WITH RECURSIVE tree (id) AS (
    SELECT id FROM jobs WHERE parent_job_id = %(job_id)s
    UNION ALL
    SELECT c.id FROM tree t JOIN jobs c ON c.parent_job_id = t.id
)
SELECT count(*) AS jobs, coalesce(sum(j.model_calls), 0)::bigint AS model_calls,
       coalesce(sum(j.input_tokens), 0)::bigint AS input_tokens,
       coalesce(sum(j.output_tokens), 0)::bigint AS output_tokens, sum(j.cost_usd) AS cost_usd
FROM tree t JOIN jobs j ON j.id = t.id
