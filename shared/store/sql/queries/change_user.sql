-- Puts something else in the place of what is kept of a user.
UPDATE user_metadata SET data = %(data)s, updated_at = planq_now()
WHERE tenant_id = %(tenant_id)s AND user_id = %(user_id)s
