-- Gives a tenant back with its next expiry, or none; not where a task was noted meanwhile.
-- KEYS: due. ARGV: tenant, the score that it was taken with, its next expiry or nothing.
if redis.call('ZSCORE', KEYS[1], ARGV[1]) ~= ARGV[2] then return end
if ARGV[3] == '' then
  redis.call('ZREM', KEYS[1], ARGV[1])
else
  redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
end
