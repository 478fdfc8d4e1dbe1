-- Takes a skill out of use, every version of it; what is retired already stays as it is.
UPDATE skills SET retired_at = planq_now() WHERE tenant_id = %(tenant_id)s AND name = %(name)s AND retired_at IS NULL
