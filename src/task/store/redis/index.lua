-- Notes that a tenant has a task that expires then, and that a holder has some of it. Called before the task is there, in case
-- that its process dies, and after, so that who tidies up meanwhile sees one or the other.
-- KEYS: due, holders, of:HOLDER. ARGV: tenant, holder, expiry and when it was sent; nothing where that is known.
if ARGV[3] ~= '' then
  local clock = redis.call('TIME')
  local by = clock[1] * 1000 + math.floor(clock[2] / 1000) - tonumber(ARGV[4])
  if by > -500 and by < 500 then by = 0 end
  redis.call('ZADD', KEYS[1], 'LT', string.format('%.0f', ARGV[3] + by), ARGV[1])
end
redis.call('SADD', KEYS[2], ARGV[2])
redis.call('HINCRBY', KEYS[3], ARGV[1], 1)
