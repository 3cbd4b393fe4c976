-- ARGV: id, owner.
local record = T .. 't:' .. ARGV[1]
if not is_there(record, ARGV[2]) then return 0 end
return redis.call('HSETNX', record, 'n', 1)
