-- ARGV: a time, when it was sent, at most so many, and when so many bytes are reached no more. Gives the records that went,
-- the earliest expiry that remains, and the tenant's bytes.
local at = tonumber(ARGV[1]) + shift(ARGV[2])
local gone, bytes = {}, 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', T .. 'x', '-inf', whole(at), 'LIMIT', 0, ARGV[3])) do
  if bytes >= tonumber(ARGV[4]) then break end
  local record = T .. 't:' .. id
  local of = redis.call('HMGET', record, 'o', 'h')
  -- Else the server dropped it by itself.
  if of[1] then
    gone[#gone + 1] = shown(record)
    bytes = bytes + #(gone[#gone][1] or '')
    redis.call('ZREM', T .. 'o:' .. of[1], id)
    redis.call('ZREM', T .. 'h:' .. of[2], id)
  end
  leaves_place(id)
  weighs(id, 0)
  redis.call('ZREM', T .. 'q', id)
  redis.call('ZREM', T .. 'x', id)
  redis.call('DEL', record, T .. 'r:' .. id, T .. 'd:' .. id, T .. 'l:' .. id)
  announce(id, 0, 'x')
end
promote()
local first = redis.call('ZRANGE', T .. 'x', 0, 0, 'WITHSCORES')[2]
-- Of a tenant without tasks only its bucket of creations is still worth something, until it is full.
if not first and counter('full') <= micros then redis.call('DEL', C) end
return {gone, first or false, counter('bytes')}
