-- The steps of one round in plan order.
SELECT * FROM steps WHERE job_id = %(job_id)s AND round = %(round)s ORDER BY index
