-- The workers that run in one place (see shared.domain.processes) and whose lease nobody has ended.
SELECT id, name, process FROM workers WHERE starts_with(process, %(place)s) AND heartbeat_at > 'epoch'
