-- ARGV: holder, its round, a position (created, id) to go on after, or nothing, and how many to look at. Gives the unfinished tasks
-- among them that it has, each with its epoch, and where there may be more the position of the last one. From here on no takeover
-- of an earlier round adds to them, so that none comes before a position that was passed.
redis.call('SET', T .. 'f:' .. ARGV[1], ARGV[2], 'PX', KEEP)
local key, after, most = T .. 'h:' .. ARGV[1], ARGV[3], tonumber(ARGV[5])
local from = after == '' and '-inf' or after
local own, seen, offset, last = {}, 0, 0, {false, false}
while seen < most do
  local ids = redis.call('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES', 'LIMIT', offset, most - seen)
  if #ids == 0 then return {own, false, false} end
  for at = 1, #ids, 2 do
    offset = offset + 1
    if after == '' or tonumber(ids[at + 1]) > tonumber(after) or ids[at] > ARGV[4] then
      seen = seen + 1
      last = {ids[at + 1], ids[at]}
      local of = redis.call('HMGET', T .. 't:' .. ids[at], 'h', 's', 'e')
      if of[1] == ARGV[1] and of[2] ~= 'e' then own[#own + 1] = {ids[at], of[3]} end
    end
  end
end
return {own, last[1], last[2]}
