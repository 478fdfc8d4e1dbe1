-- Removes tools that no live worker offers, once workers of every lane are alive to say so.
DELETE FROM tools t
WHERE t.published_at < planq_now() - interval '5 minutes'
  AND (SELECT count(DISTINCT lane) FROM workers w, unnest(w.lanes) AS lane
       WHERE w.heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s)) >= 2
  AND NOT EXISTS (SELECT 1 FROM workers w
                  WHERE t.name = ANY (w.tools)
                    AND w.heartbeat_at > planq_now() - make_interval(secs => %(lease_seconds)s))
