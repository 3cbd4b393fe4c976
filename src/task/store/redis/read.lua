-- ARGV: id, owner.
local record = T .. 't:' .. ARGV[1]
if not is_there(record, ARGV[2]) then return false end
return shown(record)
