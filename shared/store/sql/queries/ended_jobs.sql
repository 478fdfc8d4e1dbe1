-- Which of these jobs have ended: one query for everybody who waits.
SELECT id FROM jobs WHERE id = ANY (%(ids)s) AND status = ANY (%(statuses)s)
