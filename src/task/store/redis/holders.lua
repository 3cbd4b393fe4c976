-- Gives each holder, with whether its lease runs. KEYS: holders, a key whose slot is the leases'.
local all = {}
for _, holder in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  all[#all + 1] = {holder, redis.call('EXISTS', KEYS[2] .. holder)}
end
return all
