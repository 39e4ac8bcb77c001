-- Lets releases know that there may be a queue to hand over to.
-- Needs the names: meta, limit_in_force, in_line.
if not in_line and limit_in_force > 0 then
  redis.call('HSET', meta, 'line', '1')
  in_line = '1'
end
