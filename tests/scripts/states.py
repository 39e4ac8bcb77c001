"""What lies on the server and what was published: how tests see what a script did, and bring states about.

A lease that ran out, a dead session and a clock that stepped back are written down rather than waited for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from redis import Redis

from tests.scripts.calls import Scripts, token, who

_PATIENCE = 5.0
_END = b"nothing more"


@dataclass(frozen=True, slots=True)
class Message:
    """A grant as published; see `Grant`."""

    who: str
    fence: int
    amount: int
    base: bytes


@final
class Inbox:
    """What is published to one session."""

    def __init__(self, redis: Any, publish: tuple[str, bytes], pubsub: Any) -> None:
        self._redis = redis
        self._publish = publish
        self._pubsub = pubsub

    def texts(self) -> list[bytes]:
        """Return all messages since the last call, without waiting: a last one of our own shows that it was all."""
        self._redis.execute_command(*self._publish, _END)
        found: list[bytes] = []
        while True:
            message = self._pubsub.get_message(ignore_subscribe_messages=True, timeout=_PATIENCE)
            assert message is not None, "the channel is silent"
            if message["data"] == _END:
                return found
            found.append(message["data"])

    def messages(self) -> list[Message]:
        found = []
        for text in self.texts():
            token, fence, amount, base = text.split(b" ", 3)
            found.append(Message(who(token), int(fence), int(amount), base))
        return found


@contextmanager
def listening(scripts: Scripts, session: str) -> Iterator[Inbox]:
    """Subscribe *session* to its channel, which makes it reachable."""
    s = "s" if scripts.sharded else ""
    channel = scripts.channel(session)
    pubsub: Any = scripts.redis.pubsub()
    try:
        getattr(pubsub, f"{s}subscribe")(channel)
        _await_confirmation(pubsub, f"{s}subscribe")
        yield Inbox(scripts.redis, (f"{s}publish", channel), pubsub)
        getattr(pubsub, f"{s}unsubscribe")()
        _await_confirmation(pubsub, f"{s}unsubscribe")
    finally:
        pubsub.close()


@contextmanager
def monitoring(scripts: Scripts) -> Iterator[None]:
    """Subscribe to every channel by a pattern, as a monitor does."""
    pubsub: Any = scripts.redis.pubsub()
    try:
        pubsub.psubscribe("*")
        _await_confirmation(pubsub, "psubscribe")
        yield
    finally:
        pubsub.close()


@contextmanager
def configured(scripts: Scripts, **settings: object) -> Iterator[None]:
    """Run the server with other *settings*, underscores in their names standing for hyphens."""
    before = {name: scripts.redis.config_get(name.replace("_", "-")) for name in settings}
    try:
        for name, value in settings.items():
            scripts.redis.config_set(name.replace("_", "-"), value)
        yield
    finally:
        for setting in before.values():
            for name, value in setting.items():
                scripts.redis.config_set(name, value)


@contextmanager
def demoted(scripts: Any) -> Iterator[None]:
    """Have the server be a replica."""
    scripts.redis.replicaof("127.0.0.1", "1")
    try:
        yield
    finally:
        scripts.redis.replicaof("NO", "ONE")


@contextmanager
def limited_user(redis: Any, *lacks: str) -> Iterator[Redis]:
    """Make a client of a user who has all rights except for these, in the words of ACL SETUSER."""
    name = f"user {' '.join(lacks)}".replace(" ", "_")
    redis.execute_command("ACL", "SETUSER", name, "reset", "on", "nopass", "~*", "&*", "+@all", *lacks)
    path = redis.connection_pool.connection_kwargs["path"]
    try:
        with Redis(unix_socket_path=path, username=name, password="any", socket_timeout=None) as client:
            yield client
    finally:
        redis.execute_command("ACL", "DELUSER", name)


def _await_confirmation(pubsub: Any, kind: str) -> None:
    while True:
        message = pubsub.get_message(timeout=_PATIENCE)
        assert message is not None, f"{kind} was not confirmed"
        if message["type"] == kind:
            return


def holders(scripts: Scripts) -> dict[str, int]:
    """Return who holds it and for how many ms more."""
    base = scripts.keys.base
    if scripts.kind == "lock":
        value: bytes | None = _ask(scripts, "GET", base)
        return {who(value.split()[0]): pttl(scripts, base)} if value else {}
    now = now_us(scripts) // 1000
    return {who(member): score - now for member, score in zset(scripts, base).items()}


def fence_of(scripts: Scripts, holder: str) -> int:
    """Return the fencing token that lies beside a holder's token."""
    if scripts.kind == "lock":
        held_by, fence, *_ = _ask(scripts, "GET", scripts.keys.base).split()
        assert who(held_by) == holder
        return int(fence)
    return int(_ask(scripts, "HGET", scripts.key("meta"), token(holder)).split()[1])


def mark(scripts: Scripts, holder: str, letter: str = "R") -> None:
    """Put a third word beside a holder's token and fencing token."""
    if scripts.kind == "lock":
        value = _ask(scripts, "GET", scripts.keys.base)
        assert who(value.split()[0]) == holder
        _ask(scripts, "SET", scripts.keys.base, b"%b %b" % (value, letter.encode()), "KEEPTTL")
    else:
        terms = _ask(scripts, "HGET", scripts.key("meta"), token(holder))
        _ask(scripts, "HSET", scripts.key("meta"), token(holder), b"%b %b" % (terms, letter.encode()))


def last_fence(scripts: Scripts) -> bytes:
    """Return the last fencing token issued, as it is written down."""
    if scripts.kind == "lock":
        value: bytes = _ask(scripts, "GET", scripts.key("fence"))
    else:
        value = _ask(scripts, "HGET", scripts.key("meta"), "fence")
    return value


def set_last_fence(scripts: Scripts, fence: int) -> None:
    if scripts.kind == "lock":
        _ask(scripts, "SET", scripts.key("fence"), fence)
    else:
        _ask(scripts, "HSET", scripts.key("meta"), "fence", fence)


def sessions(scripts: Scripts) -> list[str]:
    """Return the sessions in the queue, first in line first."""
    return [session.decode() for session in zset(scripts, scripts.key("queue"))]


def line(scripts: Scripts, session: str = "home") -> list[str]:
    """Return who waits in one session, first in line first."""
    return list(tickets(scripts, session))


def tickets(scripts: Scripts, session: str = "home") -> dict[str, int]:
    waiting = zset(scripts, scripts.key("waiters", session=session))
    return {who(entry.split()[0]): ticket for entry, ticket in waiting.items()}


def lapse(scripts: Scripts, holder: str | bytes) -> None:
    """Let a lease have run out; in bytes, the *holder* is a whole token."""
    if scripts.kind == "lock":
        assert list(holders(scripts)) == [holder]
        _ask(scripts, "DEL", scripts.keys.base)
    else:
        ended = now_us(scripts) // 1000 - 1
        _ask(scripts, "ZADD", scripts.keys.base, "XX", ended, token(holder) if isinstance(holder, str) else holder)
        field, place = (b"used", 3) if scripts.kind == "semaphore" else (b"held", 1)
        counted = (_ask(scripts, "HGET", scripts.key("meta"), field) or b"").split()
        if counted:  # the note of when the first lease ends, which no lease may come before
            counted[place] = b"%d" % min(int(counted[place]), ended)
            _ask(scripts, "HSET", scripts.key("meta"), field, b" ".join(counted))


def ends_in(scripts: Scripts, holder: str, ms: int) -> None:
    """Write down when a lease ends, but not in the note of the first end."""
    _ask(scripts, "ZADD", scripts.keys.base, now_us(scripts) // 1_000 + ms, token(holder))


def modes_held(noted: bytes) -> list[int]:
    """Return how many hold each mode, from 1 to 7, by what the hash has noted."""
    pairs = dict(pair.split(b":") for pair in noted.split() if b":" in pair)
    return [int(pairs.get(b"%d" % mode, 0)) for mode in range(1, 8)]


def die(scripts: Scripts, session: str) -> None:
    """Let a session have been silent for longer than its line lives."""
    _ask(scripts, "DEL", scripts.key("waiters", session=session))


def contents(scripts: Scripts) -> dict[bytes, object]:
    """Return every key on the server with its value, for comparing: nothing else may have changed."""
    return {key: _value(scripts, key) for key in keys(scripts)}


def keys(scripts: Scripts) -> list[bytes]:
    found: list[bytes] = _ask(scripts, "KEYS", "*")
    return sorted(found)


def pttl(scripts: Scripts, key: bytes) -> int:
    """Return the ms that *key* has left; -1 when it has no end, -2 when it is not there."""
    left: int = _ask(scripts, "PTTL", key)
    return left


def zset(scripts: Scripts, key: bytes) -> dict[bytes, int]:
    members: list[bytes] = _ask(scripts, "ZRANGE", key, 0, -1)
    return {member: int(_ask(scripts, "ZSCORE", key, member)) for member in members}


def now_us(scripts: Scripts) -> int:
    """Return the server's clock in microseconds."""
    seconds, micros = _ask(scripts, "TIME")
    return int(seconds) * 1_000_000 + int(micros)


def _value(scripts: Scripts, key: bytes) -> object:
    kind = _ask(scripts, "TYPE", key)
    if kind == b"string":
        return _ask(scripts, "GET", key)
    if kind == b"hash":
        return _ask(scripts, "HGETALL", key)
    if kind == b"zset":
        return zset(scripts, key)
    return _ask(scripts, "LRANGE", key, 0, -1)


def _ask(scripts: Scripts, *command: object) -> Any:
    return scripts.redis.execute_command(*command)
