-- What is kept of a user; nobody else changes it before the transaction ends.
SELECT data FROM user_metadata WHERE tenant_id = %(tenant_id)s AND user_id = %(user_id)s FOR UPDATE
