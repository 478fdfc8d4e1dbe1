-- Lets messages of tenants in and counts each in both of its windows, or refuses it and counts it in none.
--
-- KEYS     two for each number of messages of one sender, in the order in which they came:
--          planq:rates:{TENANT}          list: when its messages were let in, in microseconds, the oldest first
--          planq:rates:{TENANT}:CHANNEL  the same of one channel
-- ARGV     the window in microseconds, then for each pair of keys the most messages that may count in either, and the number:
--          so many are let in at most; a negative one takes back as many that were let in and have not come
-- Returns  now, then for each pair how many were let in, and of both windows how many count and when that frees a place; times
--          as texts
--
-- The server's clock counts, so that all processes agree. A key ends with the last message in it.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local window = tonumber(ARGV[1])

local function text(number)
    return string.format('%.0f', number)
end

-- Drops what has left a window, and what a clock that was put back since has left in the future.
local function used(key)
    local oldest = tonumber(redis.call('LINDEX', key, 0))
    while oldest and (oldest <= now - window or oldest > now) do
        redis.call('LPOP', key)
        oldest = tonumber(redis.call('LINDEX', key, 0))
    end
    return redis.call('LLEN', key)
end

local function count(key, number)
    for _ = 1, number do
        redis.call('RPUSH', key, text(now))
    end
    redis.call('PEXPIRE', key, math.ceil(window / 1000))
end

-- When a full window lets the next message in, and when the oldest message leaves any other one.
local function frees(key, number, limit)
    if number == 0 then
        return text(now)
    end
    return text(redis.call('LINDEX', key, math.max(number - limit, 0)) + window)
end

local answer = {text(now)}
for i = 1, #KEYS, 2 do
    local tenant, channel, n = KEYS[i], KEYS[i + 1], (i - 1) / 2 * 3
    local most, channel_most, wanted = tonumber(ARGV[n + 2]), tonumber(ARGV[n + 3]), tonumber(ARGV[n + 4])
    if wanted < 0 then
        redis.call('RPOP', tenant, -wanted)
        redis.call('RPOP', channel, -wanted)
    end
    local number, channel_number = used(tenant), used(channel)
    local allowed = math.max(0, math.min(wanted, most - number, channel_most - channel_number))
    if allowed > 0 then
        count(tenant, allowed)
        count(channel, allowed)
        number, channel_number = number + allowed, channel_number + allowed
    end
    for _, value in ipairs({
        allowed, number, frees(tenant, number, most), channel_number, frees(channel, channel_number, channel_most)
    }) do
        answer[#answer + 1] = value
    end
end
return answer
