-- ARGV: id, owner. Takes back a creation that may have been carried out, or still will be: then it is refused.
local id = ARGV[1]
local record = T .. 't:' .. id
redis.call('SET', T .. 'n:' .. id, '', 'PX', KEEP)
local of = redis.call('HMGET', record, 's', 'b', 'o', 'h')
if of[3] ~= ARGV[2] then return end
if of[1] == 'h' then redis.call('HINCRBY', C, 'running', -1) end
redis.call('HINCRBY', C, 'bytes', whole(0 - of[2]))
redis.call('ZREM', T .. 'o:' .. of[3], id)
redis.call('ZREM', T .. 'h:' .. of[4], id)
redis.call('ZREM', T .. 'q', id)
redis.call('ZREM', T .. 'x', id)
redis.call('DEL', record, T .. 'r:' .. id, T .. 'd:' .. id, T .. 'l:' .. id)
announce(id, 0, 'x')
promote()
