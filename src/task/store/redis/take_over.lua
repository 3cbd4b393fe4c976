-- ARGV: from, by, at most so many, and when so many bytes are reached no more. Gives the records, each with draft and trail,
-- and how many of `from` are left.
local from, by, most, full = T .. 'h:' .. ARGV[1], T .. 'h:' .. ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local taken, seen, bytes = {}, 0, 0
while #taken < most and seen < 1000 and bytes < full do
  local ids = redis.call('ZRANGE', from, 0, 0, 'WITHSCORES')
  if #ids == 0 then break end
  local id = ids[1]
  seen = seen + 1
  local record = T .. 't:' .. id
  local of = redis.call('HMGET', record, 'h', 's', 'x')
  redis.call('ZREM', from, id)
  if of[1] == ARGV[1] and of[2] ~= 'e' then
    redis.call('HSET', record, 'h', ARGV[2])
    redis.call('HINCRBY', record, 'e', 1)
    announce(id, redis.call('HINCRBY', record, 'v', 1), of[2])
    redis.call('ZADD', by, ids[2], id)
    keep(by, tonumber(of[3]))
    local orphan = {shown(record), redis.call('GET', T .. 'd:' .. id), redis.call('GET', T .. 'l:' .. id)}
    bytes = bytes + #(orphan[1][1] or '') + #(orphan[2] or '') + #(orphan[3] or '')
    taken[#taken + 1] = orphan
  end
end
return {taken, redis.call('ZCARD', from)}
