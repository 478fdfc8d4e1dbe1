-- Outcome: what a step leaves beside its row, and how it reads as a text.
--
-- planq_keep_outcome     artifacts, the reference to a payload, and the `content` of an output
-- planq_add_made         the files that a model has made, as artifacts of its job
--   planq_touch_payload    in every transaction that makes a reference to a payload
-- planq_output_text      the text of an output
--   planq_preview_text   the text that stands for a large one

-- The text of an output: a text itself, what is wrapped as `{"text": ...}`, else its JSON. JSON that holds \u0000 cannot be taken
-- apart: its text is the JSON then.
CREATE FUNCTION planq_output_text(p_output json) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE json_typeof(p_output)
        WHEN 'null' THEN NULL
        WHEN 'string' THEN p_output #>> '{}'
        WHEN 'object' THEN CASE WHEN json_typeof(p_output->'text') = 'string' AND (SELECT count(*) FROM json_object_keys(p_output)) = 1
            THEN p_output->>'text' ELSE p_output::text END
        ELSE p_output::text END;
EXCEPTION WHEN untranslatable_character OR invalid_text_representation THEN
    RETURN p_output::text;
END $$;

-- The text that people are shown of a large output, by the preview of its payload: never the output itself.
CREATE FUNCTION planq_preview_text(p_preview json) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN planq_output_text(p_preview->'value');
EXCEPTION WHEN untranslatable_character OR invalid_text_representation THEN
    RETURN p_preview::text;
END $$;

-- Keeps what belongs to a large or structured output: its artifacts, the reference to its payload, and its `content`. `p_artifact` is
-- {content, beside, id, skill_id, type, metadata, media_type}; without an `id` the output itself is no artifact. `metadata` is
-- JSON in a text, because reading JSON that holds the character NUL is an error. Each item of the array `beside` is an artifact,
-- too, with its own `body` (JSON in a text) or `hash` (hexadecimal). An artifact is the next version of its id: of two
-- transactions that add one at the same time the second waits, and gets the version after it.
CREATE FUNCTION planq_keep_outcome(
    p_tenant text, p_job uuid, p_index int, p_tool_name text, p_output json, p_hash bytea, p_artifact json
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    a record;
BEGIN
    IF p_artifact->>'content' IS NOT NULL THEN
        UPDATE steps SET content = p_artifact->>'content'
        WHERE job_id = p_job AND index = p_index AND status = 'succeeded' AND content IS NULL;
    END IF;
    FOR a IN
        SELECT p_artifact AS item, p_output AS body, p_hash AS hash
        UNION ALL
        SELECT b.value, (b.value->>'body')::json, decode(b.value->>'hash', 'hex') FROM json_array_elements(p_artifact->'beside') b
    LOOP
        IF a.hash IS NOT NULL THEN
            PERFORM planq_touch_payload(p_tenant, a.hash);
        END IF;
        WHILE a.item->>'id' IS NOT NULL LOOP
            INSERT INTO artifacts (tenant_id, id, version, job_id, step_index, tool_name, skill_id, type, metadata, body,
                                   payload_hash, media_type)
            SELECT p_tenant, a.item->>'id', coalesce(max(o.version), 0) + 1, p_job, p_index, p_tool_name,
                   a.item->>'skill_id', a.item->>'type', (a.item->>'metadata')::json, a.body, a.hash, a.item->>'media_type'
            FROM artifacts o WHERE o.tenant_id = p_tenant AND o.id = a.item->>'id'
            ON CONFLICT (tenant_id, id, version) DO NOTHING;
            EXIT WHEN FOUND;
        END LOOP;
    END LOOP;
END $$;

-- Adds the files that a model has made as artifacts of its job: {id, media_type, hash, metadata}, as above. Their ids name
-- their bytes, so that a repeat adds nothing.
CREATE FUNCTION planq_add_made(p_tenant text, p_job uuid, p_made json) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_made json;
BEGIN
    FOR v_made IN SELECT value FROM json_array_elements(p_made) LOOP
        PERFORM planq_touch_payload(p_tenant, decode(v_made->>'hash', 'hex'));
        INSERT INTO artifacts (tenant_id, id, version, job_id, metadata, payload_hash, media_type)
        VALUES (p_tenant, v_made->>'id', 1, p_job, (v_made->>'metadata')::json, decode(v_made->>'hash', 'hex'),
                v_made->>'media_type')
        ON CONFLICT (tenant_id, id, version) DO NOTHING;
    END LOOP;
END $$;

-- Called in every transaction that makes a reference to a payload, after it has made it: from now on nobody collects the
-- payload for an hour, and later the reference keeps it. Where it has just been collected the transaction fails, with a
-- code that says to try again (the attempt then puts the payload anew). Null is no reference.
CREATE FUNCTION planq_touch_payload(p_tenant text, p_hash bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- A payload that was touched a moment ago is not locked, because two transactions that touch several in different orders would
    -- deadlock. The collector takes none that is younger than an hour.
    PERFORM FROM payloads WHERE tenant_id = p_tenant AND hash = p_hash AND created_at > planq_now() - interval '10 minutes';
    IF FOUND THEN
        RETURN;
    END IF;
    UPDATE payloads SET created_at = planq_now() WHERE tenant_id = p_tenant AND hash = p_hash;
    IF NOT FOUND AND p_hash IS NOT NULL THEN
        RAISE EXCEPTION 'payload % is not stored', encode(p_hash, 'hex') USING ERRCODE = 'io_error';
    END IF;
END $$;
