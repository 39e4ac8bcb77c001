"""`aiolocks release NAME`: stop the holders of a name, and report when they have stopped."""

import argparse
import json
import math
import time
from collections.abc import Awaitable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import RedisError

from .._core.errors import AcquireTimeoutError
from .._core.kinds import KINDS, Kind
from .._core.values import Holder
from .._manager import LockManager
from . import _arguments, _names
from ._arguments import Unusable
from ._connect import manager_of, place_of, reason
from ._ls import ENDLESS, add_kind, duration, lines

if TYPE_CHECKING:
    from ._arguments import Commands


_KEPT = {"cooling": "not held, but kept by min_hold", "offered": "handed off, and not adopted"}
"""Reasons why a name is taken although no process holds it, by the state of the holder."""


class _Revocable(Protocol):
    def revoke(
        self, *, fencing_token: int | None = ..., force: bool = ..., timeout: float | None = ...,
        reason: str | None = ...,
    ) -> Awaitable[tuple[Holder, ...]]: ...  # fmt: skip


def register(commands: "Commands") -> None:
    """Add this command to the parser."""
    parser = commands.add_parser(
        "release",
        help="stop the holders of a name",
        description="Stop the holders of a name: their next renewal is refused, their work is stopped, and the next "
        "waiter is granted the name when they have released it or their leases have ended. The exit status is 1 if the "
        "name is not held, or still held after --timeout.",
    )
    parser.add_argument("name", metavar="NAME", type=_arguments.name, help="the name")
    _arguments.add_url(parser)
    _arguments.add_prefix(parser)
    add_kind(parser)
    parser.add_argument("--fencing-token", type=_arguments.fencing_token, metavar="N", help="only that holder")
    parser.add_argument(
        "--force", action="store_true", help="end their leases at once: until they notice, two holders may work"
    )
    parser.add_argument(
        "--reason",
        type=_arguments.note,
        metavar="TEXT",
        help="why: for LeaseLostError and the log of the holders; at most 200 characters",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the effect, and change nothing")
    parser.add_argument(
        "--timeout",
        type=_arguments.seconds,
        metavar="S",
        help="seconds to wait until they have stopped; for ever if left out",
    )
    _arguments.add_json(parser)
    parser.set_defaults(run=_release)


async def _release(arguments: argparse.Namespace) -> int:
    url = _arguments.url_of(arguments)
    found = await _held(arguments, url)
    if found is None:
        return _report(arguments, [], 0.0, f"{_arguments.shown(arguments.name)} is not held", 1)
    if not arguments.json:
        print(*lines(found), sep="\n")
    [kind] = (kind for kind in KINDS if kind.name == found.kind)
    if not kind.leased:
        raise Unusable(f"a {kind.class_name} holds nothing: its starts count until their time is over")
    would = _would(arguments, found)
    if arguments.dry_run:
        return _report(arguments, [], 0.0, f"would {would}", 0)
    if not arguments.json:
        print(f"{would[0].upper()}{would[1:]} …", flush=True)
    began = time.monotonic()
    async with manager_of(url) as locks:
        primitive = _primitive(locks, kind, found, arguments.prefix)
        kept = _kept(arguments, found)
        try:
            gone = await primitive.revoke(
                fencing_token=arguments.fencing_token,
                force=arguments.force,
                timeout=arguments.timeout,
                reason=arguments.reason,
            )
        except AcquireTimeoutError:
            text = f"still held after {arguments.timeout:g} s; it is not renewed any more"
            return _report(arguments, [], time.monotonic() - began, text, 1)
        except RuntimeError as error:
            return _report(arguments, [], time.monotonic() - began, _arguments.masked(str(error)), 1)
        except (RedisError, OSError) as error:
            raise Unusable(f"Redis at {place_of(url)} cannot be used: {reason(error, url)}") from None
    took = time.monotonic() - began
    holders = "1 holder" if len(gone) == 1 else f"{len(gone)} holders"
    released = f"released: {holders} gone after {took:.1f} s"
    texts = [*([released] if gone or not kept else []), *([f"freed: {_why_kept(kept)}"] if kept else [])]
    return _report(arguments, gone, took, "; ".join(texts), 0)


async def _held(arguments: argparse.Namespace, url: str) -> _names.Name | None:
    """Return the name of the arguments, or None if it is not held."""
    names = await _names.named(url, arguments.prefix, arguments.name, arguments.kind)
    held = [name for name in names if name.held]
    if len(held) > 1:
        kinds = ", ".join(name.kind for name in held)
        raise Unusable(f"{_arguments.masked(arguments.name)!r} is held as several kinds ({kinds}): say which by --kind")
    return held[0] if held else None


def _kept(arguments: argparse.Namespace, found: _names.Name) -> list[_names.Person]:
    """Return the targets that keep the name taken although no process holds it. They are freed at once."""
    targets = [one for one in found.holders if arguments.fencing_token in (None, one.fencing_token)]
    return [one for one in targets if one.state in _KEPT]


def _why_kept(kept: Sequence[_names.Person]) -> str:
    """Return why the name stays taken although no process holds it, and until when."""
    reasons = list[str]()
    for state, why in _KEPT.items():
        left = [one.remaining or 0.0 for one in kept if one.state == state]
        if left:
            reasons.append(f"{why}, for {duration(max(left))} more{_until(max(left))}")
    return "; ".join(reasons)


def _until(seconds: float) -> str:
    try:
        return f", until {datetime.now(UTC) + timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return ""  # after the year 9999


def _would(arguments: argparse.Namespace, found: _names.Name) -> str:
    kept = _kept(arguments, found)
    if kept and len(kept) == found.held:
        return f"free it at once: {_why_kept(kept)}"
    lasting = [one.remaining for one in found.holders if one not in kept and one.remaining is not None]
    left = duration(max(lasting, default=None))
    if arguments.force and all(one.state == _names.ORPHANED for one in found.holders):
        return f"end its leases at once; {ENDLESS}"
    if arguments.force:
        return f"end its leases at once; two holders may work until the old ones notice, for up to {left}"
    if any(one.state == _names.ORPHANED for one in found.holders):
        return f"stop its renewal; {ENDLESS}, and only --force frees it"
    return f"stop its renewal, so that its holders stop and release it; it ends in {left} at the latest"


def _primitive(locks: LockManager, kind: Kind, found: _names.Name, prefix: str) -> _Revocable:
    if kind.quorum:
        raise Unusable("a Redlock is on several servers: revoke() of the library asks them all")
    given: dict[str, Any] = {"semaphore": {"limit": found.limit or 1}, "once": {"keep": 0}}.get(kind.name, {})
    name = [found.name] if kind.name == "multilock" else found.name
    made: Any = getattr(locks, kind.method)(name, prefix=prefix, **given)
    mode: _Revocable = getattr(made, kind.modes[0]) if kind.modes else made  # each revokes the leases of all
    return mode


def _report(
    arguments: argparse.Namespace, gone: tuple[Holder, ...] | list[Holder], took: float, text: str, status: int
) -> int:
    if arguments.json:
        holders = [
            {
                **asdict(one),
                "since": one.since and one.since.isoformat(),
                "remaining": None if math.isinf(one.remaining) else one.remaining,
            }
            for one in gone
        ]
        print(json.dumps({"released": holders, "seconds": round(took, 3), "told": text, "status": status}, indent=2))
    else:
        print(text)
    return status
