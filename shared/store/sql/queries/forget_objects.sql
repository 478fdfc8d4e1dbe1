-- These objects have been removed.
DELETE FROM payload_objects WHERE location = ANY (%(locations)s) AND is_doomed
