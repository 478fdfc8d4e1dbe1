-- A worker that stops gives up its lease at once, so that whatever it still holds is taken back by the next sweep.
DELETE FROM workers WHERE id = %(id)s
