-- ARGV: id, owner. Gives version and state.
local record = T .. 't:' .. ARGV[1]
if not is_there(record, ARGV[2]) then return false end
return redis.call('HMGET', record, 'v', 's')
