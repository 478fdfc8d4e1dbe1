-- Costs: what days cost, as the tally has written it down (functions/tally.sql).

-- name: costs_of_tenant
-- What a tenant's days cost, by what somebody asks, the dearest first; with each row the sums over all.
SELECT name, calls, unpriced_calls, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd,
       sum(cache_read_tokens) OVER ()::bigint AS all_cache_read_tokens,
       sum(cache_write_tokens) OVER ()::bigint AS all_cache_write_tokens, sum(calls) OVER ()::bigint AS all_calls,
       sum(unpriced_calls) OVER ()::bigint AS all_unpriced_calls, sum(input_tokens) OVER ()::bigint AS all_input_tokens,
       sum(output_tokens) OVER ()::bigint AS all_output_tokens, sum(cost_usd) OVER () AS all_cost_usd
FROM planq_costs(%(tenant_id)s, %(by)s, %(first)s, %(last)s, %(agent)s, %(model)s)
ORDER BY cost_usd DESC, input_tokens + output_tokens DESC, name LIMIT %(limit)s

-- name: costs_of_all
-- The same of all tenants: as many looks into the index as there are tenants.
SELECT c.name, sum(c.calls)::bigint AS calls, sum(c.unpriced_calls)::bigint AS unpriced_calls,
       sum(c.input_tokens)::bigint AS input_tokens, sum(c.output_tokens)::bigint AS output_tokens,
       sum(c.cost_usd) AS cost_usd, sum(c.cache_read_tokens)::bigint AS cache_read_tokens,
       sum(c.cache_write_tokens)::bigint AS cache_write_tokens,
       sum(sum(c.cache_read_tokens)) OVER ()::bigint AS all_cache_read_tokens,
       sum(sum(c.cache_write_tokens)) OVER ()::bigint AS all_cache_write_tokens, sum(sum(c.calls)) OVER ()::bigint AS all_calls,
       sum(sum(c.unpriced_calls)) OVER ()::bigint AS all_unpriced_calls,
       sum(sum(c.input_tokens)) OVER ()::bigint AS all_input_tokens,
       sum(sum(c.output_tokens)) OVER ()::bigint AS all_output_tokens, sum(sum(c.cost_usd)) OVER () AS all_cost_usd
FROM tenants t CROSS JOIN LATERAL planq_costs(t.id, %(by)s, %(first)s, %(last)s, %(agent)s, %(model)s) c
GROUP BY c.name
ORDER BY 6 DESC, 4 DESC, c.name LIMIT %(limit)s
