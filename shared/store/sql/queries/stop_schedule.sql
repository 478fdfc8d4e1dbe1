-- Switches a schedule off that cannot be fired, and says why; no change where somebody else has fired it meanwhile.
UPDATE schedules SET is_active = false, next_at = NULL, error = %(error)s
WHERE id = %(id)s AND is_active AND next_at = %(due_at)s
