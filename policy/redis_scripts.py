"""The compound writes of `redis_store` as Lua: each happens on the server whole or not at all.

Each script first checks a fence or a version. If the check fails, it returns the stored value.

Redis does not undo a script that an error ends. So what may be refused without harm (a version too many in the
history) is called by `pcall`, the history is written before the document, and no script announces: the user may lack
the right to a channel.
"""

PUT_IF_VERSION = """
local stored = redis.call('HGET', KEYS[1], ARGV[1])
local version = stored and cjson.decode(stored).version or 0
if ARGV[2] ~= '' and tonumber(ARGV[2]) ~= version then return {0, version} end
if ARGV[3] == '' then
  if not stored then return {2, 0} end
  redis.call('HSET', KEYS[2], ARGV[1], string.format('%d', version + 1))
  redis.call('HDEL', KEYS[1], ARGV[1])
elseif not stored then
  version = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or 0)
end
local number = string.format('%d', version + 1)
local text = '{"version":' .. number .. ',"updated_at":' .. ARGV[4] .. ',"policy":'
redis.call('HSET', KEYS[3], number, text .. (ARGV[3] == '' and 'null' or ARGV[3]) .. ',' .. ARGV[5])
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], ARGV[1], text .. ARGV[3] .. '}') end
redis.pcall('HDEL', KEYS[3], string.format('%d', version + 1 - tonumber(ARGV[6])))
return {1, version + 1}
"""

PUBLISH_SCHEDULE = """
local fence = redis.call('GET', KEYS[2])
if fence ~= ARGV[1] then return {-1, tonumber(fence or 0)} end
local stored = redis.call('HGET', KEYS[1], ARGV[2])
local is_read, document = pcall(cjson.decode, stored or '')
local version = is_read and type(document) == 'table' and document.version or -1
if version >= tonumber(ARGV[3]) then return {0, version} end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[4])
return {1, 0}
"""

REMOVE_SCHEDULE = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return -1 end
return redis.call('HDEL', KEYS[1], ARGV[2])
"""

CHANGE = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""

PUT_CANARY = """
if ARGV[4] ~= '' then
  local fence = redis.call('GET', KEYS[3])
  if fence ~= ARGV[4] then return {-1, tonumber(fence or 0)} end
end
local stored = redis.call('HGET', KEYS[1], ARGV[1])
local version = stored and cjson.decode(stored).version or 0
if version ~= tonumber(ARGV[2]) then return {0, version} end
if ARGV[5] ~= '' then
  local policy = redis.call('HGET', KEYS[2], ARGV[1])
  local base = policy and cjson.decode(policy).version or 0
  if base ~= tonumber(ARGV[6]) then return {2, base} end
  if not policy then base = tonumber(redis.call('HGET', KEYS[4], ARGV[1]) or 0) end
  local number = string.format('%d', base + 1)
  local text = '{"version":' .. number .. ',"updated_at":' .. ARGV[7] .. ',"policy":' .. ARGV[5]
  redis.call('HSET', KEYS[5], number, text .. ',' .. ARGV[8])
  redis.call('HSET', KEYS[2], ARGV[1], text .. '}')
  redis.pcall('HDEL', KEYS[5], string.format('%d', base + 1 - tonumber(ARGV[9])))
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return {1, 0}
"""

ACQUIRE = """
local stored = redis.call('GET', KEYS[1])
if stored then
  local fence, holder = string.match(stored, '^(%d+):(.*)$')
  if holder ~= ARGV[1] then return 0 end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return tonumber(fence)
end
local fence = redis.call('INCR', KEYS[2])
redis.call('SET', KEYS[1], fence .. ':' .. ARGV[1], 'PX', ARGV[2])
return fence
"""

RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
