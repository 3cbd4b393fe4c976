-- Before every script of a tenant. KEYS[1] is the tenant's hash of counters: `{prefix:tenant}:c`. All its other keys
-- start alike, so that a cluster keeps them in one place:
--   c         running, bytes: counters; limit: places; full: when its bucket of creations is full, in microseconds;
--             ticket: the last of the queue
--   x         ids by expiry          q         ids that wait for a place, by ticket
--   o:OWNER   ids by creation        h:HOLDER  ids of unfinished tasks by creation
--   t:ID      the record:   r its text, v version, e epoch, h holder, s state (q, h, e), b bytes that it counts,
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

local function announce(id, version, state)
  redis.call('PUBLISH', CHANNEL, id .. ' ' .. version .. ' ' .. state)
end

-- Gives free places to those who wait longest.
local function promote()
  local limit, running = counter('limit'), counter('running')
  local before = running
  while running < limit do
    local first = redis.call('ZPOPMIN', T .. 'q')[1]
    if not first then break end
    local record = T .. 't:' .. first
    if redis.call('HGET', record, 's') == 'q' then
      redis.call('HSET', record, 's', 'h')
      running = running + 1
      announce(first, redis.call('HINCRBY', record, 'v', 1), 'h')
    end
  end
  if running ~= before then redis.call('HSET', C, 'running', running) end
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

-- Makes that one the holder of an unfinished task. Gives the record with draft and trail.
local function handed_over(id, by, state)
  local record = T .. 't:' .. id
  redis.call('HSET', record, 'h', by)
  redis.call('HINCRBY', record, 'e', 1)
  announce(id, redis.call('HINCRBY', record, 'v', 1), state)
  return {shown(record), redis.call('GET', T .. 'd:' .. id), redis.call('GET', T .. 'l:' .. id)}
end
