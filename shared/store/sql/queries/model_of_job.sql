-- The model that a job uses.
SELECT model FROM jobs WHERE id = %(job_id)s
