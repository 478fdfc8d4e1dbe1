-- What models' servers refuse: see adaptations.sql of the functions.

-- name: adaptations_of
-- The adaptations of one model at one base URL that have not expired.
SELECT adaptation FROM model_adaptations
WHERE base_url = %(base_url)s AND model = %(model)s AND expires_at > planq_now()

-- name: learn_adaptation
-- Stores or renews an adaptation; returns whether it is new.
SELECT planq_learn_adaptation(%(base_url)s, %(model)s, %(adaptation)s, %(refusal)s, %(days)s, %(most)s) AS is_new

-- name: list_adaptations
-- All adaptations that have not expired, for people.
SELECT base_url, model, adaptation, refusal, learned_at, expires_at FROM model_adaptations
WHERE expires_at > planq_now() ORDER BY base_url, model, adaptation

-- name: forget_adaptations
-- Deletes the adaptations of a model at every base URL, or of all models; its server is then tried without them again.
DELETE FROM model_adaptations WHERE %(model)s::text IS NULL OR model = %(model)s::text
