-- Before every script of a tenant. KEYS[1] is the tenant's hash of counters: `{prefix:tenant}:c`. All its other keys
-- start alike, so that a cluster keeps them in one place:
--   c         running, bytes: counters; limit: places; full: when its bucket of creations is full, in microseconds;
--             ticket: the last of the queue
--   x         ids by expiry          q         ids that wait for a place, by ticket
--   u         ids that have a place  w         by id the bytes that it counts, where there are any: both for records that
--             the server drops by itself
--   o:OWNER   ids by creation        h:HOLDER  ids of unfinished tasks by creation
--   t:ID      the record:   r its text, v version, e epoch, h holder, s state (q, h, e),
--             c created, u updated, d deadline, x expiry, o owner, k the kind of its outcome,
--             n that was handed out
--   r:ID, d:ID, l:ID        outcome, draft, trail
--   n:ID      a creation that was taken back, so that it is not carried out late
--   f:HOLDER  the round of a holder's takeovers, so that none of an earlier one is carried out late
-- Times are milliseconds of the server. What depends on them is decided here.
local C = KEYS[1]
local T = string.sub(C, 1, -2)
local CHANNEL = string.match(T, '^{(.*):[^:]*}:$') .. ':changes'
local clock = redis.call('TIME')
local micros = clock[1] * 1000000 + clock[2]
local now = math.floor(micros / 1000)
-- How long a key stays after what it says has expired, for a purge that comes late.
local KEEP = 3600000
-- A replica whose clock differs by less is believed.
local SLACK = 500

-- What is to be added to a time of the replica that sent this.
local function shift(sent)
  local by = now - tonumber(sent)
  if by > -SLACK and by < SLACK then return 0 end
  return by
end

local function whole(number) return string.format('%.0f', number) end

-- Keeps a key at least until its content has been purged.
local function keep(key, expiry)
  local at = whole(math.max(expiry, now) + KEEP)
  if redis.call('PEXPIREAT', key, at, 'GT') == 0 and redis.call('PTTL', key) == -1 then
    redis.call('PEXPIREAT', key, at)
  end
end

local function counter(name) return tonumber(redis.call('HGET', C, name) or '0') end

-- Counts that a task has a place until that expiry at least.
local function takes_place(id, expiry)
  if redis.call('SADD', T .. 'u', id) == 1 then redis.call('HINCRBY', C, 'running', 1) end
  keep(T .. 'u', expiry)
end

local function leaves_place(id)
  if redis.call('SREM', T .. 'u', id) == 1 then redis.call('HINCRBY', C, 'running', -1) end
end

-- Counts what a task weighs until that expiry at least.
local function weighs(id, bytes, expiry)
  local before = tonumber(redis.call('HGET', T .. 'w', id) or '0')
  if bytes == before then return end
  redis.call('HINCRBY', C, 'bytes', whole(bytes - before))
  if bytes == 0 then
    redis.call('HDEL', T .. 'w', id)
  else
    redis.call('HSET', T .. 'w', id, whole(bytes))
    keep(T .. 'w', expiry)
  end
end

local function announce(id, version, state)
  redis.call('PUBLISH', CHANNEL, id .. ' ' .. version .. ' ' .. state)
end

-- Gives free places to those who wait longest.
local function promote()
  local free = counter('limit') - counter('running')
  while free > 0 do
    local first = redis.call('ZPOPMIN', T .. 'q')[1]
    if not first then break end
    local record = T .. 't:' .. first
    local of = redis.call('HMGET', record, 's', 'x')
    if of[1] == 'q' then
      redis.call('HSET', record, 's', 'h')
      takes_place(first, tonumber(of[2]))
      free = free - 1
      announce(first, redis.call('HINCRBY', record, 'v', 1), 'h')
    end
  end
end

-- The record as replicas read it.
local function shown(record)
  return redis.call('HMGET', record, 'r', 'v', 'e', 'h', 's', 'c', 'u', 'd', 'x')
end

-- Whether this owner has the task, and it has not expired.
local function is_there(record, owner)
  local of = redis.call('HMGET', record, 'o', 'x')
  return of[1] == owner and tonumber(of[2]) > now
end

-- Takes a task out of all that is kept of it, and tells who watches it. Without owner and holder where the server has dropped the
-- record by itself. Whoever removes some gives their places to others then.
local function remove(id, owner, holder)
  if owner then
    redis.call('ZREM', T .. 'o:' .. owner, id)
    redis.call('ZREM', T .. 'h:' .. holder, id)
  end
  leaves_place(id)
  weighs(id, 0)
  redis.call('ZREM', T .. 'q', id)
  redis.call('ZREM', T .. 'x', id)
  redis.call('DEL', T .. 't:' .. id, T .. 'r:' .. id, T .. 'd:' .. id, T .. 'l:' .. id)
  announce(id, 0, 'x')
end

-- Makes that one the holder of an unfinished task. Gives the record with draft and trail.
local function handed_over(id, by, state)
  local record = T .. 't:' .. id
  redis.call('HSET', record, 'h', by)
  redis.call('HINCRBY', record, 'e', 1)
  announce(id, redis.call('HINCRBY', record, 'v', 1), state)
  return {shown(record), redis.call('GET', T .. 'd:' .. id), redis.call('GET', T .. 'l:' .. id)}
end

-- The bytes of what was handed over.
local function size_of(orphan)
  return #(orphan[1][1] or '') + #(orphan[2] or '') + #(orphan[3] or '')
end
