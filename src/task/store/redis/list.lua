-- ARGV: owner, at most so many, and a position (created, id) to begin after, or nothing.
local key, most, after = T .. 'o:' .. ARGV[1], tonumber(ARGV[2]), ARGV[3]
local from = after == '' and '+inf' or after
local page, offset = {}, 0
while #page < most do
  local ids = redis.call('ZREVRANGEBYSCORE', key, from, '-inf', 'WITHSCORES', 'LIMIT', offset, most - #page + 1)
  if #ids == 0 then break end
  for at = 1, #ids, 2 do
    offset = offset + 1
    local is_after = after == '' or tonumber(ids[at + 1]) < tonumber(after) or ids[at] < ARGV[4]
    if is_after and #page < most and is_there(T .. 't:' .. ids[at], ARGV[1]) then
      page[#page + 1] = shown(T .. 't:' .. ids[at])
    end
  end
end
return page
