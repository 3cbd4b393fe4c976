-- ARGV: id, owner. Gives the kind's letter and the text.
local record = T .. 't:' .. ARGV[1]
if not is_there(record, ARGV[2]) then return false end
return {redis.call('HGET', record, 'k'), redis.call('GET', T .. 'r:' .. ARGV[1])}
