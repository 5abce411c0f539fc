"""The compound writes of `policy.store` as Lua: each happens on the server whole or not at all.

Redis does not undo a script that an error ends. So the commands that a user may lack the right to come before the first
write that counts, and no script announces: the user may lack the right to a channel.
"""

COMPARE_AND_WRITE = """
local compared = tonumber(ARGV[1])
for index = compared + 1, #KEYS do
  if ARGV[2 * index + 1] == '' then redis.call('HDEL', KEYS[index], '') end  -- removes nothing, and needs the right
end
for index, key in ipairs(KEYS) do
  local field, text = ARGV[2 * index], ARGV[2 * index + 1]
  if index <= compared then
    local stored
    if field == '' then stored = redis.call('GET', key) else stored = redis.call('HGET', key, field) end
    if (stored or '') ~= text then return index end
  elseif field == '' then
    redis.call('SET', key, text)
  elseif text == '' then
    redis.call('HDEL', key, field)
  else
    redis.call('HSET', key, field, text)
  end
end
return 0
"""
"""KEYS: those to compare, then those to write. ARGV: the number to compare, then a field and a text for each key.

Without a field the key is a string. An empty text stands for none: it is compared with a missing one, or removes.
Returns the number of the first key that differs; 0 if everything was written.
"""

APPEND_AUDIT = """
local number = redis.call('INCR', KEYS[2])
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], number .. '-0', 'entry', ARGV[2])
return number
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
