-- An object is about to be written: whatever happens, it will be found.
INSERT INTO payload_objects (location, tenant_id) VALUES (%(location)s, %(tenant_id)s)
