-- ARGV: holder, its round. Gives the unfinished tasks that it has, each with its epoch. From here on no takeover of an earlier
-- round adds to them.
redis.call('SET', T .. 'f:' .. ARGV[1], ARGV[2], 'PX', KEEP)
local own = {}
for _, id in ipairs(redis.call('ZRANGE', T .. 'h:' .. ARGV[1], 0, -1)) do
  local of = redis.call('HMGET', T .. 't:' .. id, 'h', 's', 'e')
  if of[1] == ARGV[1] and of[2] ~= 'e' then own[#own + 1] = {id, of[3]} end
end
return own
