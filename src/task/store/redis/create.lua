-- ARGV: id, owner, record, holder, when it was sent, created, deadline, expiry, limits (running, queued, kept, bytes),
-- draft, interval in nanoseconds and burst of creations.
local id, owner, holder = ARGV[1], ARGV[2], ARGV[4]
local record = T .. 't:' .. id
if redis.call('EXISTS', record, T .. 'n:' .. id) > 0 then return {'conflict'} end
redis.call('HSET', C, 'limit', ARGV[9])
keep(C, now)
promote()

local full
if ARGV[14] ~= '' then
  local interval, burst = ARGV[14] / 1000, tonumber(ARGV[15])
  full = math.max(counter('full'), micros)
  local over = full - interval * (burst - 1) - micros
  if over > 0 then return {'creates', math.ceil(over / 1000)} end
  full = full + interval
end
local kept, queued = redis.call('ZCARD', T .. 'x'), redis.call('ZCARD', T .. 'q')
local function refused(reason)
  local first = redis.call('ZRANGE', T .. 'x', 0, 0, 'WITHSCORES')[2]
  return {reason, first and math.max(tonumber(first) - now, 0) or -1}
end
if kept >= tonumber(ARGV[11]) then return refused('kept') end
if counter('bytes') >= tonumber(ARGV[12]) then return refused('bytes') end
local state
if counter('running') < tonumber(ARGV[9]) then
  state = 'h'
elseif queued < tonumber(ARGV[10]) then
  state = 'q'
  redis.call('ZADD', T .. 'q', redis.call('HINCRBY', C, 'ticket', 1), id)
else
  return refused('places')
end

local by = shift(ARGV[5])
local created, deadline, expiry = ARGV[6] + by, ARGV[7] + by, ARGV[8] + by
redis.call('HSET', record, 'r', ARGV[3], 'v', 1, 'e', 1, 'h', holder, 's', state, 'c', whole(created),
  'u', whole(created), 'd', whole(deadline), 'x', whole(expiry), 'o', owner)
redis.call('ZADD', T .. 'x', whole(expiry), id)
redis.call('ZADD', T .. 'o:' .. owner, whole(created), id)
redis.call('ZADD', T .. 'h:' .. holder, whole(created), id)
local last = expiry
if full then
  redis.call('HSET', C, 'full', full)
  last = math.max(expiry, full / 1000)
end
keep(C, last)
for _, key in ipairs({record, T .. 'x', T .. 'o:' .. owner, T .. 'h:' .. holder}) do keep(key, expiry) end
if state == 'q' then keep(T .. 'q', expiry) else takes_place(id, expiry) end
if ARGV[13] ~= '' then
  redis.call('SET', T .. 'd:' .. id, ARGV[13])
  keep(T .. 'd:' .. id, expiry)
end
return {'made', shown(record)}
