-- Ends the lease of a worker whose process has gone: nobody has ever beaten at the epoch. A beat that was still on its
-- way brings the lease back until the next sweep.
UPDATE workers SET heartbeat_at = 'epoch'
WHERE id = %(id)s AND process = %(process)s AND heartbeat_at > 'epoch'
