-- ARGV: id, owner, epoch, trail.
local id = ARGV[1]
local record = T .. 't:' .. id
if not is_there(record, ARGV[2]) then return 'gone' end
local of = redis.call('HMGET', record, 'e', 's', 'x')
if of[1] ~= ARGV[3] or of[2] == 'e' then return 'conflict' end
redis.call('SET', T .. 'l:' .. id, ARGV[4])
keep(T .. 'l:' .. id, tonumber(of[3]))
return 'noted'
