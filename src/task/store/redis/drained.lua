-- A holder has nothing of a tenant any more; not where a task was noted meanwhile.
-- KEYS: holders, of:HOLDER. ARGV: holder, tenant and how often it was noted; without them where it may have none at all.
if ARGV[2] and redis.call('HGET', KEYS[2], ARGV[2]) == ARGV[3] then redis.call('HDEL', KEYS[2], ARGV[2]) end
if redis.call('HLEN', KEYS[2]) == 0 then redis.call('SREM', KEYS[1], ARGV[1]) end
