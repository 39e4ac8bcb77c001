"""What an older version of a semaphore's scripts does, command by command: it keeps no number of permits in use."""

from tests.scripts.calls import TTL, Scripts, token
from tests.scripts.states import now_us


def grant(semaphore: Scripts, who: str, permits: int = 1) -> None:
    """The number stays as it was, the fencing token moves on."""
    now, meta = now_us(semaphore), semaphore.key("meta")
    fence = max(now, int(semaphore.redis.hget(meta, "fence") or 0) + 1)
    semaphore.redis.zadd(semaphore.keys.base, {token(who): now // 1000 + TTL})
    semaphore.redis.hset(meta, mapping={"fence": fence, token(who).decode(): f"{permits} {fence}"})
    semaphore.redis.hset(meta, "weight", max(permits, int(semaphore.redis.hget(meta, "weight") or 0)))


def release(semaphore: Scripts, who: str) -> None:
    semaphore.redis.zrem(semaphore.keys.base, token(who))
    semaphore.redis.hdel(semaphore.key("meta"), token(who))
