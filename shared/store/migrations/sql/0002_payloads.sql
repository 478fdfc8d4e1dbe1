-- Large outputs in release 0002: see shared/store/payloads.py.

-- Called in every transaction that makes a reference to a payload, after it has made it: from now on nobody collects the
-- payload for an hour, and later the reference keeps it. Where it has just been collected the transaction fails, with a
-- code that says to try again (the attempt then puts the payload anew). Null is no reference.
CREATE FUNCTION planq_touch_payload(p_tenant text, p_hash bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE payloads SET created_at = now() WHERE tenant_id = p_tenant AND hash = p_hash;
    IF NOT FOUND AND p_hash IS NOT NULL THEN
        RAISE EXCEPTION 'payload % is not stored', encode(p_hash, 'hex') USING ERRCODE = 'io_error';
    END IF;
END $$;
