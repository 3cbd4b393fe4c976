-- Takes some of the tenants that have something to purge, so that no other replica does, and gives each with its score
-- before and now. A replica that dies with them gives them back after a minute.
-- KEYS: due. ARGV: a time, when it was sent, at most so many. Second: the earliest expiry of those that nobody has taken.
local TAKEN, BACK = 1e15, 60000
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local by = now - tonumber(ARGV[2])
if by > -500 and by < 500 then by = 0 end
local function whole(number) return string.format('%.0f', number) end
local function due(from, to) return redis.call('ZRANGEBYSCORE', KEYS[1], from, to, 'WITHSCORES', 'LIMIT', 0, ARGV[3]) end
local taken = {}
for _, found in ipairs({due(whole(TAKEN), whole(TAKEN + now - BACK)), due('-inf', whole(ARGV[1] + by))}) do
  for at = 1, #found, 2 do
    taken[#taken + 1] = {found[at], found[at + 1], whole(TAKEN + now)}
    redis.call('ZADD', KEYS[1], whole(TAKEN + now), found[at])
  end
end
return {taken, redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. whole(TAKEN), 'WITHSCORES', 'LIMIT', 0, 1)[2]}
