-- ARGV: holder, and tasks of its own, each with its epoch. Gives the records, each with draft and trail.
local taken = {}
for at = 2, #ARGV, 2 do
  local of = redis.call('HMGET', T .. 't:' .. ARGV[at], 'h', 's', 'e')
  if of[1] == ARGV[1] and of[2] ~= 'e' and of[3] == ARGV[at + 1] then
    taken[#taken + 1] = handed_over(ARGV[at], ARGV[1], of[2])
  end
end
return {taken}
