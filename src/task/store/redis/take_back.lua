-- ARGV: id, owner. Takes back a creation that may have been carried out, or still will be: then it is refused.
local id = ARGV[1]
redis.call('SET', T .. 'n:' .. id, '', 'PX', KEEP)
local of = redis.call('HMGET', T .. 't:' .. id, 'o', 'h')
if of[1] ~= ARGV[2] then return end
remove(id, of[1], of[2])
promote()
