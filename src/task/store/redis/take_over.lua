-- ARGV: from, by, at most so many. Gives the records, each with draft and trail, and how many of `from` are left.
local from, by, most = T .. 'h:' .. ARGV[1], T .. 'h:' .. ARGV[2], tonumber(ARGV[3])
local taken = {}
while #taken < most do
  local ids = redis.call('ZRANGE', from, 0, most - #taken - 1, 'WITHSCORES')
  if #ids == 0 then break end
  for at = 1, #ids, 2 do
    local id = ids[at]
    local record = T .. 't:' .. id
    local of = redis.call('HMGET', record, 'h', 's', 'x')
    redis.call('ZREM', from, id)
    if of[1] == ARGV[1] and of[2] ~= 'e' then
      redis.call('HSET', record, 'h', ARGV[2])
      redis.call('HINCRBY', record, 'e', 1)
      announce(id, redis.call('HINCRBY', record, 'v', 1), of[2])
      redis.call('ZADD', by, ids[at + 1], id)
      keep(by, tonumber(of[3]))
      taken[#taken + 1] = {shown(record), redis.call('GET', T .. 'd:' .. id), redis.call('GET', T .. 'l:' .. id)}
    end
  end
end
return {taken, redis.call('ZCARD', from)}
