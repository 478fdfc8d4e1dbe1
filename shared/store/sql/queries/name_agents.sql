-- The names of a tenant's agents in use, and the versions of the one named, for telling what there is.
SELECT ARRAY (SELECT DISTINCT name FROM agents WHERE tenant_id = %(tenant_id)s AND retired_at IS NULL
              ORDER BY name LIMIT %(limit)s) AS names,
       ARRAY (SELECT version FROM agents WHERE tenant_id = %(tenant_id)s AND name = %(name)s
              ORDER BY version DESC LIMIT %(limit)s) AS versions
