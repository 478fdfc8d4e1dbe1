-- Removes a schedule; the jobs that it made stay.
DELETE FROM schedules WHERE id = %(id)s AND tenant_id = %(tenant_id)s
