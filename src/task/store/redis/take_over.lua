-- ARGV: from, by, at most so many, the round of `by`, and when so many bytes are reached no more. Gives the records, each with
-- draft and trail, and how many of `from` are left. One that comes after a later round has begun does nothing: nobody waits for it
-- any more.
local from, by = T .. 'h:' .. ARGV[1], T .. 'h:' .. ARGV[2]
local most, full = tonumber(ARGV[3]), tonumber(ARGV[5])
local round = redis.call('GET', T .. 'f:' .. ARGV[2])
if round and tonumber(round) > tonumber(ARGV[4]) then return {{}, redis.call('ZCARD', from)} end
local taken, seen, bytes = {}, 0, 0
while #taken < most and seen < 1000 and bytes < full do
  local ids = redis.call('ZRANGE', from, 0, 0, 'WITHSCORES')
  if #ids == 0 then break end
  local id = ids[1]
  seen = seen + 1
  local of = redis.call('HMGET', T .. 't:' .. id, 'h', 's', 'x')
  redis.call('ZREM', from, id)
  if of[1] == ARGV[1] and of[2] ~= 'e' then
    redis.call('ZADD', by, ids[2], id)
    keep(by, tonumber(of[3]))
    taken[#taken + 1] = handed_over(id, ARGV[2], of[2])
    bytes = bytes + size_of(taken[#taken])
  end
end
return {taken, redis.call('ZCARD', from)}
