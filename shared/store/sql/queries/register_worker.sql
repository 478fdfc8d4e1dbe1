-- Announces a worker process.
INSERT INTO workers (id, name, lanes, tools, capacity, version, process)
VALUES (%(id)s, %(name)s, %(lanes)s, %(tools)s, %(capacity)s, %(version)s, %(process)s)
ON CONFLICT (id) DO UPDATE SET tools = excluded.tools, heartbeat_at = planq_now()
