-- ARGV: holder, when so many bytes are reached no more, and tasks of its own, each with its epoch. Gives the records, each with
-- draft and trail.
local taken, full, bytes = {}, tonumber(ARGV[2]), 0
for at = 3, #ARGV, 2 do
  if bytes >= full then break end
  local of = redis.call('HMGET', T .. 't:' .. ARGV[at], 'h', 's', 'e')
  if of[1] == ARGV[1] and of[2] ~= 'e' and of[3] == ARGV[at + 1] then
    taken[#taken + 1] = handed_over(ARGV[at], ARGV[1], of[2])
    bytes = bytes + size_of(taken[#taken])
  end
end
return {taken}
