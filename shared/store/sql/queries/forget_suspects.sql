-- Removes what is suspected no more: it has ended otherwise, or any worker was free to claim it.
DELETE FROM suspects WHERE noted_at < planq_now() - interval '10 minutes'
