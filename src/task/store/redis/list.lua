-- ARGV: owner, at most so many, a position (created, id) to begin after, or nothing, and when so many bytes are reached no
-- more. Gives the records, and where that was so the position of the last one.
local key, most, after, full = T .. 'o:' .. ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[5])
local from = after == '' and '+inf' or after
local page, offset, bytes = {}, 0, 0
while #page < most do
  local ids = redis.call('ZREVRANGEBYSCORE', key, from, '-inf', 'WITHSCORES', 'LIMIT', offset, most - #page + 1)
  if #ids == 0 then break end
  for at = 1, #ids, 2 do
    offset = offset + 1
    local is_after = after == '' or tonumber(ids[at + 1]) < tonumber(after) or ids[at] < ARGV[4]
    if is_after and #page < most and is_there(T .. 't:' .. ids[at], ARGV[1]) then
      page[#page + 1] = shown(T .. 't:' .. ids[at])
      bytes = bytes + #(page[#page][1] or '')
      if bytes >= full then return {page, ids[at + 1], ids[at]} end
    end
  end
end
return {page, false, false}
