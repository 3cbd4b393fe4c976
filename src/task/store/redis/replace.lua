-- ARGV: id, owner, version, record, state, bytes of its questions, updated, its
-- outcome: the kind's letter, or nothing, and the text.
local id = ARGV[1]
local record = T .. 't:' .. id
if not is_there(record, ARGV[2]) then return {'gone'} end
local of = redis.call('HMGET', record, 'v', 's', 'u', 'x', 'h')
local before, state, expiry = of[2], ARGV[5], tonumber(of[4])
if of[1] ~= ARGV[3] or before == 'e' then return {'conflict'} end

local bytes = tonumber(ARGV[6])
if ARGV[8] ~= '' then
  bytes = bytes + #ARGV[9]
  redis.call('HSET', record, 'k', ARGV[8])
  redis.call('SET', T .. 'r:' .. id, ARGV[9])
  keep(T .. 'r:' .. id, expiry)
end
weighs(id, bytes, expiry)
if before ~= state then
  if before == 'q' then redis.call('ZREM', T .. 'q', id) end
  if before == 'h' then leaves_place(id) end
  if state == 'h' then takes_place(id, expiry) end
  if state == 'e' then
    redis.call('ZREM', T .. 'h:' .. of[5], id)
    redis.call('DEL', T .. 'd:' .. id, T .. 'l:' .. id)
  end
end
local updated = of[3]
-- The time of what changed is now, whatever the replica's clock says.
if ARGV[7] ~= updated then updated = whole(math.max(tonumber(updated), now)) end
redis.call('HSET', record, 'r', ARGV[4], 's', state, 'u', updated)
announce(id, redis.call('HINCRBY', record, 'v', 1), state)
promote()
return {'replaced', shown(record), counter('bytes')}
