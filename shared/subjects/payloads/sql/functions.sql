-- Stored bytes: how much of each tenant's payloads and artifacts is kept, counted in the commit that adds or removes it.
--
--   planq_count_payloads    counts payloads that were added or removed
--   planq_count_artifacts   counts artifacts whose body is in their row; a large one's is a payload
--   planq_stored_bytes      how many bytes a tenant keeps
--
-- Each statement adds a row of its own to `stored_byte_changes`: a row of the tenant's would be one that all its commits
-- wait for. The sweep adds them up in `stored_bytes` (queries/payloads.sql).

CREATE FUNCTION planq_count_payloads() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO stored_byte_changes (tenant_id, bytes)
    SELECT c.tenant_id, CASE TG_OP WHEN 'INSERT' THEN sum(c.size) ELSE -sum(c.size) END FROM changed c GROUP BY c.tenant_id;
    RETURN NULL;
END $$;

CREATE TRIGGER planq_count_added AFTER INSERT ON payloads
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION planq_count_payloads();
CREATE TRIGGER planq_count_removed AFTER DELETE ON payloads
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION planq_count_payloads();

CREATE FUNCTION planq_count_artifacts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO stored_byte_changes (tenant_id, bytes)
    SELECT c.tenant_id, CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END * sum(octet_length(c.body::text))
    FROM changed c WHERE c.body IS NOT NULL GROUP BY c.tenant_id;
    RETURN NULL;
END $$;

CREATE TRIGGER planq_count_added AFTER INSERT ON artifacts
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION planq_count_artifacts();
CREATE TRIGGER planq_count_removed AFTER DELETE ON artifacts
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION planq_count_artifacts();

-- How many bytes of payloads and artifacts a tenant keeps, those of this transaction and of every one before it.
CREATE FUNCTION planq_stored_bytes(p_tenant text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT (coalesce((SELECT s.bytes FROM stored_bytes s WHERE s.tenant_id = p_tenant), 0)
          + coalesce((SELECT sum(c.bytes) FROM stored_byte_changes c WHERE c.tenant_id = p_tenant), 0))::bigint
$$;
