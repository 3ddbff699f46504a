"""The one script of budgets: Redis' own clock, all asks of a batch, one round trip."""

from typing import Final

HEAD: Final = 5
"""Before the keys' arguments: the router's id, ms that a router which died keeps its places, how
many routers there are, ms that an empty Redis waits for them, since when the router knows this
Redis (0: not yet).

The first key is the fleet's: since when this Redis knows anything, and which routers have told it
all since then. Until all have, or that time is over, it has lost what they have let in, or may
have; then it lets in nobody who has bounds (answer 4: ask again).
"""
ARGUMENTS: Final = 14
"""Per key: is_ask, tokens, three bounds, own requests in flight, a floor, a carry, own totals.

Floor (window, requests, tokens): totals that this router was told last: they count where Redis
has lost its own. Carry (window, requests, tokens): what it used since, unasked.
Own totals (requests, tokens): what this router let in, in the floor's window. Once all routers have
come by, their sum is the truth, whatever Redis has lost.
Answers: since when it knows anything; then per key: refusal (0: none, 1: requests, 2: tokens,
3: concurrent, 4: not known yet), requests, tokens, in flight, window, ms until the next.
"""

BUDGETS: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local window = math.floor(now / 60000)
local me, lease = 'c:' .. ARGV[1], tonumber(ARGV[2])
local mine = 'o:' .. ARGV[1]
local owns, let_in, answers = {}, {}, {}
local fleet, routers, came = {}, tonumber(ARGV[3]), 0
local flat = redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do
  fleet[flat[i]] = flat[i + 1]
  if string.sub(flat[i], 1, 2) == 'r:' then came = came + 1 end
end
local is_settled, since = fleet['settled'] == '1', tonumber(fleet['since'] or now)
if not is_settled then
  routers = math.max(routers, tonumber(fleet['routers'] or '1'))
  redis.call('HSET', KEYS[1], 'since', since, 'routers', routers)
  if tonumber(ARGV[5]) == since and not fleet['r:' .. ARGV[1]] then
    came = came + 1
    redis.call('HSET', KEYS[1], 'r:' .. ARGV[1], 1)
  end
  is_settled = came >= routers or now - since >= tonumber(ARGV[4])
  if is_settled then redis.call('HSET', KEYS[1], 'settled', 1) end
end
answers[1] = since
redis.call('PEXPIRE', KEYS[1], 86400000)
for k = 2, #KEYS do
  local key, base = KEYS[k], 5 + (k - 2) * 14
  local function arg(i) return tonumber(ARGV[base + i]) end
  local stored, others, sum_r, sum_t = {}, 0, 0, 0
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local field, value = all[i], all[i + 1]
    stored[field] = value
    if string.sub(field, 1, 2) == 'o:' and field ~= mine then
      local w, r, t = string.match(value, '(%d+) (%d+) (%d+)')
      if tonumber(w) == window then
        sum_r, sum_t = sum_r + tonumber(r), sum_t + tonumber(t)
      else
        redis.call('HDEL', key, field)
      end
    end
    if string.sub(field, 1, 2) == 'c:' and field ~= me then
      if tonumber(string.sub(value, 1, 14)) <= now then
        redis.call('HDEL', key, field)
      else
        others = others + tonumber(string.sub(value, 15))
      end
    end
  end
  local requests, tokens = 0, 0
  if tonumber(stored['w'] or '-1') == window then
    requests, tokens = tonumber(stored['r']), tonumber(stored['t'])
  elseif arg(7) == window then
    requests, tokens = arg(8), arg(9)
  end
  if arg(10) == window then
    requests, tokens = requests + arg(11), math.max(0, tokens + arg(12))
  end
  local used = let_in[key] or {0, 0}
  let_in[key] = used
  if arg(7) == window then
    used = {used[1] + arg(13), used[2] + arg(14)}
  end
  requests, tokens = math.max(requests, sum_r + used[1]), math.max(tokens, sum_t + used[2])
  local own, refused = owns[key] or arg(6), 0
  if arg(1) == 1 then
    if arg(3) > 0 and requests + 1 > arg(3) then
      refused = 1
    elseif arg(4) > 0 and tokens + arg(2) > arg(4) then
      refused = 2
    elseif arg(5) > 0 and others + own + 1 > arg(5) then
      refused = 3
    elseif arg(3) + arg(4) + arg(5) > 0 and not is_settled then
      refused = 4
    else
      requests, tokens, own = requests + 1, tokens + arg(2), own + 1
      used = {used[1] + 1, used[2] + arg(2)}
      let_in[key] = {let_in[key][1] + 1, let_in[key][2] + arg(2)}
    end
  end
  owns[key] = own
  redis.call('HSET', key, 'w', window, 'r', requests, 't', tokens, mine,
    string.format('%.0f %.0f %.0f', window, used[1], math.max(0, used[2])))
  if own > 0 then
    redis.call('HSET', key, me, string.format('%014.0f', now + lease) .. own)
  else
    redis.call('HDEL', key, me)
  end
  redis.call('PEXPIRE', key, math.max(120000, lease))
  answers[k] = {refused, requests, tokens, others + own, window, (window + 1) * 60000 - now}
end
return answers
"""
