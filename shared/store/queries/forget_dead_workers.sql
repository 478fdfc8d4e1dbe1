-- Removes workers that have been silent for a day; nothing refers to them any more.
DELETE FROM workers WHERE heartbeat_at < now() - interval '1 day'
