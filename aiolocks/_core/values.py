"""Values that users get about a name: its statistics, holders and waiters, and the text of a lease handed off.

The server knows a token, when it came and how long it lasts. A token begins with the id of the session that made it.
That session's own key says on which host and in which process it is, and what the task is called.
"""

import json
import math
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, final


@dataclass(frozen=True, slots=True)
class Statistics:
    """The state of a name when Redis was asked.

    Attributes:
        name: The name that was asked about.
        permits: Permits in use, including those that only `min_hold` keeps. 1 for a lock while it is held or kept.
            With readers, one for each lease.
        holders: Leases held, not counting released ones that only `min_hold` keeps.
        waiting: Waiters in the queue.
        fencing_token: The newest fencing token; 0 if none was given for a day.
        limit: Maximum number of permits in use; 1 for a lock; 0 where there is no limit.
        kept_until: Time, by the server's clock, until which `min_hold` keeps the last of the released leases. None if
            it keeps none.
        paused: Seconds until a `pause` of a semaphore ends, by the server's clock; 0.0 if it is not paused. A pause
            counts neither in `permits` nor in `holders`.
    """

    name: str
    permits: int
    holders: int
    waiting: int
    fencing_token: int
    limit: int
    kept_until: datetime | None = None
    paused: float = 0.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A lease that was held when Redis was asked.

    Attributes:
        host: The holder's host. None if its session has not published it, or may not write its own key.
        pid: The holder's process on that host; None as for *host*.
        holder: The ``holder=`` label of its `LockManager`. None until the lease has lasted for half a second, because
            shorter leases publish nothing of themselves.
        task: The name of the asyncio task that acquired the lease; None as for *holder*.
        note: What the lease is for: the option `note`, or what `lease.note` was called with last. None without one, as
            for *holder*, and for a process of an older version. A new note is seen after 2 s at the latest. It is as
            its author wrote it, so escape it before you show it.
        since: When the lease was granted, by the server's clock; None if that is not known.
        remaining: Seconds until it ends unless it is renewed, by the server's clock; infinity if it never ends.
        permits: Permits of a semaphore that it holds; 1 for any other primitive.
        mode: "read", "write" or "upgradeable". On a level of a path, "intent-read" or "intent-write" if only a level
            below it is read or written. None where there are no modes.
        fencing_token: The fencing token of the lease; 0 if it is not known.
    """

    host: str | None
    pid: int | None
    holder: str | None
    task: str | None
    since: datetime | None
    remaining: float
    permits: int
    mode: str | None
    fencing_token: int
    note: str | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """A caller that was in the queue when Redis was asked.

    Attributes:
        host: The waiter's host; None as for a `Holder`.
        pid: The waiter's process on that host; None as for *host*.
        holder: The ``holder=`` label of its `LockManager`; None until it has waited for half a second.
        task: The name of the asyncio task that waits; None as for *holder*.
        note: What it waits for the lease for, as for a `Holder`.
        since: When it asked, by the server's clock. None if that is not known, as for a waiter that passes the queue.
        waiting: Seconds since then, by the server's clock; 0.0 if that is not known.
        permits: Permits of a semaphore that it waits for; 1 for any other primitive.
        mode: As for a `Holder`.
        position: Number of waiters in front of it in the queue of its name: 0 is next.
    """

    host: str | None
    pid: int | None
    holder: str | None
    task: str | None
    since: datetime | None
    waiting: float
    permits: int
    mode: str | None
    note: str | None = None
    position: int = 0


def printable(text: str) -> str:
    """Return *text* with control characters escaped, because they could move a terminal's cursor."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


_SHOWN = 3
"""Maximum number of holders that the text of an error describes."""


def described(holders: Sequence[Holder], now: datetime) -> str:
    """Return the holders in a few words, for errors: ``billing on web-3 (pid 812) for 41 s: May's report``."""
    each = [_described(holder, now) for holder in holders[:_SHOWN]]
    more = len(holders) - _SHOWN
    return ", by ".join(each) + (f", and by {more} more" if more > 0 else "")


def _described(holder: Holder, now: datetime) -> str:
    where = f"{holder.host} (pid {holder.pid})" if holder.host else "an unknown process"
    who = holder.holder or holder.task
    text = f"{who} on {where}" if who and holder.host else who or where
    if holder.since is not None:
        text += f" for {max((now - holder.since).total_seconds(), 0.0):.0f} s"
    return printable(f"{text}: {holder.note}" if holder.note else text)


_START = "lease1."


@final
class Offer(NamedTuple):
    """The content of the text that `hand_off` returns: the names, the secret of the lease, and its TTL.

    Anyone who reads the text can adopt or release the lease, so it must not appear in a log or an error.
    """

    kind: str
    bases: tuple[bytes, ...]
    """The key of each holder, which is made of the prefix, the kind and the name."""
    amount: int
    """The permits of a semaphore, or a mode."""
    secret: bytes
    ttl: float
    """Minimum number of seconds that it lasts from when it was handed off."""

    def __repr__(self) -> str:
        return f"<Offer of {self.kind}>"

    def secret_of(self, at: int) -> bytes:
        """Return what replaces the token of the name at position *at*: each name of a lease has another."""
        return b"%b.%d" % (self.secret, at) if len(self.bases) > 1 else self.secret

    def text(self) -> str:
        names = [base.decode() for base in self.bases]
        said = json.dumps([self.kind, names, self.amount, self.secret.decode(), self.ttl]).encode()
        return _START + urlsafe_b64encode(zlib.crc32(said).to_bytes(4, "big") + said).decode()


def offer_of(text: str | bytes) -> Offer:
    """Read the text of a lease handed off.

    Raises:
        TypeError: It is neither str nor bytes.
        ValueError: It is another text, or a part of one.
    """
    given: object = text
    if not isinstance(given, (str, bytes)):
        raise TypeError(f"text must be what hand_off() returned, not {type(given).__name__}")
    given = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    offer = _read(given)
    if offer is None or offer.text() != given:  # P14: raised here, as an error from `_read` would show the text
        raise ValueError("text must be what hand_off() returned: this is another text, or not the whole of it")
    return offer


def _read(text: str) -> Offer | None:
    try:
        said = urlsafe_b64decode(text.removeprefix(_START).encode("ascii"))[4:]  # `offer_of` compares the rest
        kind, names, amount, secret, ttl = json.loads(said)
        if type(amount) is not int or amount < 1 or type(ttl) is not float or not 0 < ttl < math.inf:
            return None
        return Offer(kind, tuple(name.encode() for name in names), amount, secret.encode(), ttl)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
