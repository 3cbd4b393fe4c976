-- ARGV: id, owner, version, record, state, bytes of its questions, updated, its
-- outcome: the kind's letter, or nothing, and the text.
local id = ARGV[1]
local record = T .. 't:' .. id
if not is_there(record, ARGV[2]) then return {'gone'} end
local of = redis.call('HMGET', record, 'v', 's', 'b', 'u', 'x', 'h')
local before, state, expiry = of[2], ARGV[5], tonumber(of[5])
if of[1] ~= ARGV[3] or before == 'e' then return {'conflict'} end

local bytes = tonumber(ARGV[6])
if ARGV[8] ~= '' then
  bytes = bytes + #ARGV[9]
  redis.call('HSET', record, 'k', ARGV[8])
  redis.call('SET', T .. 'r:' .. id, ARGV[9])
  keep(T .. 'r:' .. id, expiry)
end
if bytes ~= tonumber(of[3]) then redis.call('HINCRBY', C, 'bytes', whole(bytes - tonumber(of[3]))) end
if before ~= state then
  if before == 'q' then redis.call('ZREM', T .. 'q', id) end
  if before == 'h' then redis.call('HINCRBY', C, 'running', -1) end
  if state == 'h' then redis.call('HINCRBY', C, 'running', 1) end
  if state == 'e' then
    redis.call('ZREM', T .. 'h:' .. of[6], id)
    redis.call('DEL', T .. 'd:' .. id, T .. 'l:' .. id)
  end
end
local updated = of[4]
-- The time of what changed is now, whatever the replica's clock says.
if ARGV[7] ~= updated then updated = whole(math.max(tonumber(updated), now)) end
redis.call('HSET', record, 'r', ARGV[4], 's', state, 'b', whole(bytes), 'u', updated)
announce(id, redis.call('HINCRBY', record, 'v', 1), state)
promote()
return {'replaced', shown(record), counter('bytes')}
