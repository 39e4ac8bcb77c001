"""Everything that one name has on the server, read at one instant and put into names."""

from dataclasses import dataclass
from typing import Self

from tests.scripts.calls import Scripts, who

_ROUNDED = 2_000


@dataclass(frozen=True, slots=True)
class Seen:
    """Instants are microseconds of the server's clock."""

    before: int
    """When it was last read: nothing that was done since then was done earlier."""
    now: int
    slack: int
    """By how much an instant may seem earlier or later: reading took so long, and some are written in ms."""
    fences: dict[str, int]
    """By holder whose lease has not run out."""
    permits: dict[str, int]
    offered: set[str]
    """Secrets under which leases are offered."""
    ends: dict[str, int]
    lines: dict[str, dict[bytes, int]]
    """By session: entries and their tickets."""
    queue: list[str]
    scores: dict[str, int]
    buried: set[str]
    last_fence: int
    newest: int
    """The newest ticket of all, as it is written down; 0: none is."""
    lives: dict[bytes, int]
    """ms that each key has left."""
    strange: list[bytes]
    """Keys that no header names."""
    pause: int
    """When the pause of a semaphore ends; 0: there is none."""
    longest: int
    """ms: the largest TTL that the hash of a semaphore knows of."""
    heaviest: int
    """The same of the permits of one holder."""

    @classmethod
    def read(cls, scripts: Scripts, before: int) -> Self:
        """Read all keys in one transaction; none but those of this name may be there."""
        names: list[bytes] = sorted(scripts.redis.keys("*"))
        pipeline = scripts.redis.pipeline(transaction=True)
        pipeline.execute_command("TIME")
        for name in names:
            pipeline.pttl(name)
            a_line = name == scripts.key("queue") or name.startswith(scripts.keys.part(b"q:"))
            if a_line or (name == scripts.keys.base and scripts.kind != "lock"):
                pipeline.zrange(name, 0, -1, withscores=True)
            elif name == scripts.key("meta"):
                pipeline.hgetall(name)
            else:
                pipeline.get(name)
        pipeline.execute_command("TIME")
        began, *replies, ended = pipeline.execute()
        now = _micros(ended)
        lives = dict(zip(names, replies[::2], strict=True))
        values = dict(zip(names, replies[1::2], strict=True))
        return cls._sorted_out(scripts, (before or now, now, now - _micros(began) + _ROUNDED), lives, values)

    @classmethod
    def _sorted_out(
        cls, scripts: Scripts, instants: tuple[int, int, int], lives: dict[bytes, int], values: dict[bytes, object]
    ) -> Self:
        before, now, slack = instants
        lines_at, tombs_at = scripts.keys.part(b"q:"), scripts.keys.part(b"t:")
        lines = {name.removeprefix(lines_at).decode() for name in values if name.startswith(lines_at)}
        buried = {name.removeprefix(tombs_at) for name in values if name.startswith(tombs_at)}
        queue = _scores(values.get(scripts.key("queue")))
        terms, ends, last_fence = (_mutex if scripts.kind == "lock" else _semaphore)(scripts, now, lives, values)
        paused = _scores(values.get(scripts.keys.base)) if scripts.kind == "semaphore" else {}
        meta = values.get(scripts.key("meta"))
        told: dict[bytes, bytes] = meta if isinstance(meta, dict) else {}
        known = {scripts.keys.base, scripts.key("queue"), scripts.key("highest")}
        known.add(scripts.key("fence" if scripts.kind == "lock" else "meta"))
        newest = values.get(scripts.key("highest"))
        return cls(
            before, now, slack,
            {who(token): int(fence) for token, (_, fence, *_) in terms.items()},
            {who(token): int(permits) for token, (permits, *_) in terms.items()},
            {who(token) for token, (*_, last) in terms.items() if last == b"O"},
            ends,
            {name: _scores(values[lines_at + name.encode()]) for name in lines},
            [name.decode() for name in queue],
            {name.decode(): score for name, score in queue.items()},
            {who(token) for token in buried},
            last_fence,
            int(newest) if isinstance(newest, bytes) else 0,
            lives,
            [name for name in values if name not in known and not name.startswith((lines_at, tombs_at))],
            1_000 * paused.get(b"pause", 0),
            int(told.get(b"ttl", 0)),
            int(told.get(b"weight", 0)),
        )  # fmt: skip


_Holders = tuple[dict[bytes, list[bytes]], dict[str, int], int]
"""The terms of each token (permits, fencing token, and perhaps a mark), the ends, and the last fencing token."""


def _mutex(scripts: Scripts, now: int, lives: dict[bytes, int], values: dict[bytes, object]) -> _Holders:
    value, last = values.get(scripts.keys.base), values.get(scripts.key("fence"))
    last_fence = int(last) if isinstance(last, bytes) else 0
    if not isinstance(value, bytes):
        return {}, {}, last_fence
    token, *terms = value.split(b" ")
    return {token: [b"1", *terms]}, {who(token): now + 1_000 * lives[scripts.keys.base]}, last_fence


def _semaphore(scripts: Scripts, now: int, lives: dict[bytes, int], values: dict[bytes, object]) -> _Holders:
    meta = values.get(scripts.key("meta"))
    told: dict[bytes, bytes] = meta if isinstance(meta, dict) else {}
    live = {token: 1_000 * end for token, end in _scores(values.get(scripts.keys.base)).items() if 1_000 * end > now}
    if live.pop(b"pause", 0):
        assert told[b"pause"].split()[::2] == [b"1000000000", b"C"], "W25"
        assert int(told[b"pause"].split()[1]) <= int(told[b"fence"])
    terms = {token: told[token].split() for token in live}
    return terms, {who(token): end for token, end in live.items()}, int(told.get(b"fence", 0))


def _micros(time: tuple[int, int]) -> int:
    return int(time[0]) * 1_000_000 + int(time[1])


def _scores(members: object) -> dict[bytes, int]:
    return {member: int(score) for member, score in members} if isinstance(members, list) else {}
