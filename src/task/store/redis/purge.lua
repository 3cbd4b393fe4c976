-- ARGV: a time, when it was sent, at most so many. Gives the records that went, the earliest expiry that remains, and the
-- tenant's bytes.
local at = tonumber(ARGV[1]) + shift(ARGV[2])
local gone, is_short = {}, false
for _, id in ipairs(redis.call('ZRANGEBYSCORE', T .. 'x', '-inf', whole(at), 'LIMIT', 0, ARGV[3])) do
  local record = T .. 't:' .. id
  local of = redis.call('HMGET', record, 's', 'b', 'o', 'h')
  if of[1] then
    gone[#gone + 1] = shown(record)
    if of[1] == 'h' then redis.call('HINCRBY', C, 'running', -1) end
    redis.call('HINCRBY', C, 'bytes', whole(0 - of[2]))
    redis.call('ZREM', T .. 'o:' .. of[3], id)
    redis.call('ZREM', T .. 'h:' .. of[4], id)
  else
    -- The server dropped it by itself: what it counted is not known any more.
    is_short = true
  end
  redis.call('ZREM', T .. 'q', id)
  redis.call('ZREM', T .. 'x', id)
  redis.call('DEL', record, T .. 'r:' .. id, T .. 'd:' .. id, T .. 'l:' .. id)
  announce(id, 0, 'x')
end
if is_short then
  local running, bytes = 0, 0
  for _, id in ipairs(redis.call('ZRANGE', T .. 'x', 0, -1)) do
    local of = redis.call('HMGET', T .. 't:' .. id, 's', 'b')
    if of[1] == 'h' then running = running + 1 end
    bytes = bytes + tonumber(of[2] or '0')
  end
  redis.call('HSET', C, 'running', running, 'bytes', bytes)
end
promote()
local first, bytes = redis.call('ZRANGE', T .. 'x', 0, 0, 'WITHSCORES')[2], counter('bytes')
-- Of a tenant without tasks only its bucket of creations is still worth something, until it is full.
if not first and counter('full') <= micros then redis.call('DEL', C) end
return {gone, first or false, bytes}
