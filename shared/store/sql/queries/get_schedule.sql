-- One schedule, and the database's time.
SELECT s.next_at, s.is_active, planq_now() AS now FROM (SELECT 1) one
LEFT JOIN schedules s ON s.id = %(id)s AND s.tenant_id = %(tenant_id)s
