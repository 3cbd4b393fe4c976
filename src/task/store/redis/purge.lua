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
  end
  remove(id, of[1], of[2])
end
promote()
local first = redis.call('ZRANGE', T .. 'x', 0, 0, 'WITHSCORES')[2]
-- Of a tenant without tasks only its bucket of creations is still worth something, until it is full.
if not first and counter('full') <= micros then redis.call('DEL', C) end
return {gone, first or false, counter('bytes')}
