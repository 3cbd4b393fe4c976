-- Sums the bytes of all tenants. KEYS: sizes, total. ARGV: tenant, its bytes, and so on.
for at = 1, #ARGV, 2 do
  local before = tonumber(redis.call('HGET', KEYS[1], ARGV[at]) or '0')
  redis.call('INCRBY', KEYS[2], string.format('%.0f', tonumber(ARGV[at + 1]) - before))
  if ARGV[at + 1] == '0' then redis.call('HDEL', KEYS[1], ARGV[at]) else redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1]) end
end
return tonumber(redis.call('GET', KEYS[2]) or '0')
