-- ARGV: id, owner. Takes back a creation that may have been carried out, or still will be: then it is refused.
local id = ARGV[1]
local record = T .. 't:' .. id
redis.call('SET', T .. 'n:' .. id, '', 'PX', KEEP)
local of = redis.call('HMGET', record, 'o', 'h')
if of[1] ~= ARGV[2] then return end
leaves_place(id)
weighs(id, 0)
redis.call('ZREM', T .. 'o:' .. of[1], id)
redis.call('ZREM', T .. 'h:' .. of[2], id)
redis.call('ZREM', T .. 'q', id)
redis.call('ZREM', T .. 'x', id)
redis.call('DEL', record, T .. 'r:' .. id, T .. 'd:' .. id, T .. 'l:' .. id)
announce(id, 0, 'x')
promote()
