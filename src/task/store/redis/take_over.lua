-- ARGV: from, by, at most so many, the round of `by`. Gives the records, each with draft and trail, and how many of `from` are
-- left. One that comes after a later round has begun does nothing: nobody waits for it any more.
local from, by, most = T .. 'h:' .. ARGV[1], T .. 'h:' .. ARGV[2], tonumber(ARGV[3])
local round = redis.call('GET', T .. 'f:' .. ARGV[2])
if round and tonumber(round) > tonumber(ARGV[4]) then return {{}, redis.call('ZCARD', from)} end
local taken = {}
while #taken < most do
  local ids = redis.call('ZRANGE', from, 0, most - #taken - 1, 'WITHSCORES')
  if #ids == 0 then break end
  for at = 1, #ids, 2 do
    local id = ids[at]
    local of = redis.call('HMGET', T .. 't:' .. id, 'h', 's', 'x')
    redis.call('ZREM', from, id)
    if of[1] == ARGV[1] and of[2] ~= 'e' then
      redis.call('ZADD', by, ids[at + 1], id)
      keep(by, tonumber(of[3]))
      taken[#taken + 1] = handed_over(id, ARGV[2], of[2])
    end
  end
end
return {taken, redis.call('ZCARD', from)}
