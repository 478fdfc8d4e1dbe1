-- Makes room for what is kept of a user.
INSERT INTO user_metadata (tenant_id, user_id, data) VALUES (%(tenant_id)s, %(user_id)s, '{}')
ON CONFLICT (tenant_id, user_id) DO NOTHING
