"""What is written down beside holders agrees with who holds, whatever has happened: numbers, terms, lives of keys.

A number that is too small lets too many in, and one that is too large keeps permits from all; a key that ends too soon
forgets what is held.
"""

import random
from typing import Any, Literal

import pytest
from redis import Redis

from aiolocks._core.modes import EXCLUSIVE, INTENT_EXCLUSIVE, INTENT_SHARED, SHARED, UPGRADEABLE
from tests.scripts import older
from tests.scripts.calls import DAY_MS, TTL, Scripts, on_server, who
from tests.scripts.states import die, holders, lapse, listening, modes_held, now_us, pttl, zset
from tests.support.cases import the_rest_slow

_LATE_MS = 30_000
"""By how much an instant may seem earlier or later: it is read after the script has run."""

_TTLS = [10 * TTL, 20 * TTL, 20 * TTL, 20 * TTL, 40 * TTL, 3 * DAY_MS]
_SHARES: dict[str, list[int]] = {
    "semaphore": [1, 1, 2, 9, 12], "rwlock": [SHARED, SHARED, INTENT_SHARED, INTENT_EXCLUSIVE, UPGRADEABLE, EXCLUSIVE],
}  # fmt: skip


class Books:
    """What lies beside the holders of one name."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        found: Any = scripts.redis.hgetall(scripts.key("meta"))
        self.fields: dict[bytes, bytes] = dict(found)
        self.ends = zset(scripts, scripts.keys.base)
        self.terms = {who(token): [int(word) for word in self.fields[token].split()] for token in self.ends}
        """Permits or mode, and fencing token, by holder."""
        self.longest = int(self.fields.get(b"ttl", 0))

    def agree(self) -> None:
        terms, fence = list(self.terms.values()), int(self.fields.get(b"fence", 0))
        assert {field for field in self.fields if len(field) >= 32} == set(self.ends), (
            "nothing of those who held before"
        )
        if self._scripts.kind == "rwlock":
            noted = self.fields.get(b"held", b"")
            assert not noted or int(noted.split()[0]) == fence
            assert modes_held(noted) == [sum(mode == asked for mode, _ in terms) for asked in range(1, 8)]
        elif b"used" in self.fields:
            used, members, witness = [int(word) for word in self.fields[b"used"].split()][:3]
            assert (used, members) == (sum(permits for permits, _ in terms), len(terms))
            assert witness == fence
        assert all(given <= fence for _, given in terms)

    def last(self) -> None:
        """Check that nothing ends before the leases that it tells of, nor lasts for much longer."""
        scripts, now = self._scripts, now_us(self._scripts) // 1_000
        life, meta_life = pttl(scripts, scripts.keys.base), pttl(scripts, scripts.key("meta"))
        if self.ends:
            latest = max(self.ends.values()) - now
            assert latest - _LATE_MS < life <= max(latest, 2 * self.longest)
        if self.fields:
            assert max(DAY_MS, life) - 60_000 - _LATE_MS < meta_life <= max(DAY_MS, 2 * self.longest)
        noted = self.fields.get(b"used", b"").split()[3:] or self.fields.get(b"held", b"").split()[1:3]
        if self.ends and noted:
            first_end, kept_until = map(int, noted)
            assert 0 < first_end <= min(self.ends.values())
            assert kept_until <= now + life + _LATE_MS


@on_server
@pytest.mark.parametrize(("kind", "limit"), [("semaphore", 30), ("semaphore", 1), ("rwlock", 0)])
@pytest.mark.parametrize("seed", the_rest_slow(range(8), quick=2))
def test_the_counts_of_a_semaphore_agree_after_any_traffic(
    backend: Redis, kind: Literal["semaphore", "rwlock"], limit: int, seed: int
) -> None:
    """Sessions die or cannot be told, leases run out, and an older version of the scripts releases some."""
    chance = random.Random(seed)
    scripts = Scripts(backend, kind, limit=limit)
    asked: dict[str, tuple[str, int, int]] = {}
    longest = 0
    with listening(scripts, "s0"):
        for step in range(100):
            terms = f"s{chance.randrange(3)}", chance.choice(_SHARES[kind]), chance.choice(_TTLS)
            asked.setdefault(f"w{step}w", terms)
            who = chance.choice(list(asked)[-15:])
            session, share, ttl_ms = asked[who]
            renewed = 0
            match chance.randrange(10):
                case 0 | 1 | 2 | 3:
                    wait = chance.random() < 0.7
                    scripts.grant(who, session=session, permits=share, ttl_ms=ttl_ms, wait=wait)
                case 4 | 5:
                    scripts.release(who, session=session, permits=share, ttl_ms=ttl_ms)
                case 6:
                    renewed = 80 * TTL if scripts.renew(who, 80 * TTL) else 0
                case 7:
                    die(scripts, session)
                case 8:
                    if kind == "semaphore" and who in holders(scripts):
                        older.release(scripts, who)
                    scripts.statistics()
                case _:
                    for holder in chance.sample(sorted(holders(scripts)), len(holders(scripts)) // 2):
                        lapse(scripts, holder)
                    scripts.statistics()
            books = Books(scripts)
            books.agree()
            books.last()
            longest = max([longest, renewed, *(asked[holder][2] for holder in books.terms)])
            longest = longest if b"ttl" in books.fields else 0  # they begin anew after all leases ran out together
            assert books.longest == longest
