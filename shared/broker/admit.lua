-- Lets a message of a tenant in and counts it in both windows, or refuses it and counts it in none.
--
-- KEYS[1]  planq:rates:{TENANT}          list: when its messages were let in, in microseconds, the oldest first
-- KEYS[2]  planq:rates:{TENANT}:CHANNEL  the same of one channel; the braces keep both in one slot of a cluster
-- ARGV     the window in microseconds, the limit of the tenant, the limit of the channel
-- Returns  {1 or 0, now, used of the tenant, when it frees, used of the channel, when that frees}, times as texts
--
-- The server's clock counts, so that all processes agree. Both keys end with the last message in them.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local window = tonumber(ARGV[1])

-- Drops what has left a window, and what a clock that was put back since has left in the future.
local function used(key)
    local oldest = tonumber(redis.call('LINDEX', key, 0))
    while oldest and (oldest <= now - window or oldest > now) do
        redis.call('LPOP', key)
        oldest = tonumber(redis.call('LINDEX', key, 0))
    end
    return redis.call('LLEN', key)
end

local function text(number)
    return string.format('%.0f', number)
end

-- When a full window lets the next message in, and when the oldest message leaves any other one.
local function frees(key, count, limit)
    if count == 0 then
        return text(now)
    end
    return text(redis.call('LINDEX', key, math.max(count - limit, 0)) + window)
end

local tenant, channel = used(KEYS[1]), used(KEYS[2])
local allowed = 0
if tenant < tonumber(ARGV[2]) and channel < tonumber(ARGV[3]) then
    allowed = 1
    for _, key in ipairs(KEYS) do
        redis.call('RPUSH', key, text(now))
        redis.call('PEXPIRE', key, math.ceil(window / 1000))
    end
    tenant, channel = tenant + 1, channel + 1
end
return {
    allowed, text(now), tenant, frees(KEYS[1], tenant, tonumber(ARGV[2])),
    channel, frees(KEYS[2], channel, tonumber(ARGV[3]))
}
