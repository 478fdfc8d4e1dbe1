-- What the steps of one round are and how they ended, without their outputs; one step where `index` is given.
SELECT index, tool_name, lane, effect, recovery, status, attempt, releases, in_doubt, question, wanted, arguments, error
FROM steps WHERE job_id = %(job_id)s AND round = %(round)s AND (%(index)s::int IS NULL OR index = %(index)s)
ORDER BY index
