"""Teeth: defects planted into the library while it runs, each of which the simulation must find.

How they are planted is in `tests.support.garden`.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from aiolocks._core import answers as _answers
from aiolocks._engine import acquire as _acquire
from aiolocks._engine import lease_state as _lease_state
from aiolocks._engine import renewal as _renewal
from aiolocks._engine import request as _request
from aiolocks._grantors import listening as _listening
from aiolocks._grantors import wait_queue as _wait_queue
from aiolocks._redis import router as _router
from tests.support.garden import Garden

from .defects_of_kinds import OF_KINDS
from .network import Network
from .planting import Defect, lua, python, shared
from .requests import scripts
from .things import KINDS
from .wire import Wire

_OWNS = "value and (value == token or string.sub(value, 1, #token + 1) == token .. ' ')"
_WAITS = f"redis.call('ZSCORE', waiters, token .. ' ' .. terms .. ' {30 * '.'}')"

_CLOCK = "__import__('sys').modules['aiolocks._engine.context'].Context.clock()"


def _validity_from_the_reply(garden: Garden) -> None:
    garden.source(_lease_state.LeaseState, "begin", "= valid_from +", "= now +")


def _renewal_from_the_reply(garden: Garden) -> None:
    garden.source(_renewal.Watchdog, "_renewed", "state.extend(sent_at +", "state.extend(now +")


def _no_local_expiry(garden: Garden) -> None:
    garden.source(_lease_state.LeaseState, "begin", "+ self.request.valid_for", "+ 1e6")


def _get_then_del(garden: Garden) -> None:
    """Two requests with time between them, what many a hand-made lock does: the second arrives a round trip later."""
    request = Network.request
    known = cache(scripts)

    def request_in_two(self: Network, wire: Wire, fields: list[bytes]) -> None:
        script = known().get(fields[1]) if len(fields) > 1 else None
        if script is not None and script.name == "lock/release":
            values = 3 + int(fields[2])
            token, bury = values + script.args.index("token"), values + script.args.index("tombstone_ms")
            holder = self.server.database().get(fields[3])
            if fields[bury] != b"00" and holder is not None and holder.value.startswith(fields[token]):
                wire.hold_requests([*fields[:bury], b"00", *fields[bury + 1 :]], 2 * self.delay())
                return
        request(self, wire, fields)

    garden.put(Network, "request", request_in_two)
    garden.lua(
        "lock/release",
        _OWNS,
        f"redis.call('EXISTS', holder) == 1 and (tombstone_ms == '00' or {_OWNS})",
    )


def _client_clock(garden: Garden) -> None:
    """Every request brings the time that its process's machine shows, and leases end by that."""
    request = Network.request

    def request_with_time(self: Network, wire: Wire, fields: list[bytes]) -> None:
        if len(fields) > 3 and fields[3].startswith(b"aiolocks:semaphore:"):
            fields = [*fields, b"%d" % (wire.process.wall() * 1000)]
        request(self, wire, fields)

    garden.put(Network, "request", request_with_time)
    garden.lua("semaphore/grant", "local missing_s = 0 ", "local missing_s = 0; needed_s = nil ")  # it is the time
    garden.lua(
        "semaphore/release", "local known = ", "min_hold_ms = ARGV[8] and min_hold_ms\nlocal known = "
    )  # so here
    garden.shared(
        "local now_ms = math.floor(now_us / 1000)",
        "local now_ms = tonumber(ARGV[#ARGV])\nif entries then table.remove(entries) end",
    )


def _no_tombstone(garden: Garden) -> None:
    for script in ("lock/release", "semaphore/release"):
        garden.lua(script, "if tombstone_ms ~= '0' then", "if false then")


def _counted_for_another(garden: Garden) -> None:
    garden.source(
        _wait_queue.WaitQueue, "_read",
        "for request, answer in zip",
        "for request in self._context.tokens.values():\n"
        "        request.left_at(call.sent_at)\n"
        "    for request, answer in zip",
    )  # fmt: skip


def _no_undo(garden: Garden) -> None:
    async def undo(state: Any, error: BaseException) -> None:
        state.context.forget(state.request)

    garden.put(_acquire, "_undo", undo)


DEFECTS: dict[str, Defect] = {
    "validity-from-the-reply": Defect(_validity_from_the_reply, ("P1", "C1")),
    "renewal-from-the-reply": Defect(_renewal_from_the_reply, ("P1", "C1")),
    "no-local-expiry": Defect(_no_local_expiry, ("P1", "C1")),
    "get-then-del-release": Defect(_get_then_del, ("P1", "C1")),
    "release-without-compare": Defect(
        lua("lock/release", _OWNS, f"redis.call('EXISTS', holder) == 1 and ({_OWNS} or not {_WAITS})"),
        ("P1", "C1"),
    ),
    "renewal-recreates": Defect(
        lua(
            "lock/renew",
            "  return mark == 'R' and -1 or 0",
            "  if not value then redis.call('SET', holder, token .. ' 1', 'PX', ttl_ms) return 1 end\n  return 0",
        ),
        ("P8", "P1", "C2", "C3"),
    ),
    "renewal-shortens": Defect(
        lua("lock/renew", "if redis.call('PTTL', holder) < tonumber(ttl_ms) then", "if true then"), ("P3", "P1")
    ),
    "renewal-of-many-shortens": Defect(
        lua(
            "lock/renew_many",
            "if renewed and redis.call('PTTL', holder) < tonumber(ttl_ms) then",
            "if renewed then",
        ),
        ("P3", "P1"),
    ),
    "fence-by-incr": Defect(
        shared(
            "if last >= number then\n    number = last + 1",
            "if true then\n    number = last + 1",
        ),
        ("P8", "C2", "C3"),
    ),
    "no-tombstone": Defect(_no_tombstone, ("P7",)),
    "client-clock-semaphore": Defect(_client_clock, ("P1", "P9", "C1", "P3")),
    "no-recheck-after-subscribing": Defect(
        python(_listening.Listening, "__init__", "on_subscribed=self._subscribed", "on_subscribed=lambda _: None"),
        ("P7",),
    ),
    "publish-count-instead-of-numsub": Defect(
        shared(
            "redis.pcall('PUBSUB', count, channel)\n  return reply.err and 0 or tonumber(reply[2])",
            "redis.pcall('PUBLISH', channel, '')\n  return type(reply) == 'number' and reply or 0",
        ),
        ("W1",),
    ),
    "releasers-ttl": Defect(
        shared(
            "local token, ttl_ms, permits, needed_s = string.match(entry, '^(%S+) (%d+) (%d+) ?(%d*)')",
            "local token, its, permits, needed_s = string.match(entry, '^(%S+) (%d+) (%d+) ?(%d*)')\n"
            "local ttl_ms = string.match(ARGV[2], '^%d+') or its",
        ),
        ("P1", "C1"),
    ),
    "counted-from-arrival": Defect(
        python(
            _request.Request,
            "grant",
            "self.unanswered[0].sent_at if self.valid_from is None else self.valid_from",
            _CLOCK,
        ),
        ("P1", "C1"),
    ),
    "counted-from-a-recheck-for-another": Defect(_counted_for_another, ("P1", "C1")),
    "recheck-creates": Defect(
        shared(
            "    answers[at] = answer or 0",
            "    if not number and not ticket then\n      local now, text = micros()\n"
            "      redis.call('ZADD', waiters, text, entry)\n      keep_queue()\n      answer = now\n    end\n"
            "    answers[at] = answer or 0",
        ),
        ("W8",),
    ),
    "no-undo": Defect(_no_undo, ("P7", "C4")),
    "stale-notices-believed": Defect(
        python(_request.Request, "grant", "(valid_from is None and fence <= self.fence_seen)", "False"), ("P1", "C1")
    ),
    "no-re-entry": Defect(python(_wait_queue.WaitQueue, "_read", "self._send_anew(request)", "pass"), ("P13",)),
    "no-recheck": Defect(
        python(_wait_queue.WaitQueue, "_schedule", "call_later(delay,", "call_later(1e6,"), ("P13", "P7")
    ),
    "newest-first": Defect(
        shared("redis.call('ZRANGE', queue, '0', '0')[1]", "redis.call('ZRANGE', queue, '-1', '-1')[1]"), ("FIFO",)
    ),
    "limit-forgotten": Defect(shared("if used + permits <= limit_in_force then", "if true then"), ("P9",)),
    "ask-once-refused": Defect(
        lua(
            "lock/grant",
            "if existing == 0 and missing_s <= 0 then",
            "if existing == 0 and string.sub(ticket, 1, 1) == '-' then\n  return { 'busy', -2, 0 }\nend\n"
            "if existing == 0 and missing_s <= 0 then",
        ),
        ("C3",),
    ),
    "given-up-call-sent-on": Defect(
        python(_router.SlotRoute, "redirect", "if call.abandoned or call.redirects", "if call.redirects"),
        ("P7",),
        cluster=True,
    ),
    "outage-not-ridden-out": Defect(
        python(_answers, "ride_out", "may_pass if outages else came_too_early", "lambda _: False"),
        ("I4",),
        cluster=True,
    ),
    **OF_KINDS,
}
"""One for each promise and rule that a schedule can break."""


def finds(defect: str, text: str) -> bool:
    """Return whether a violation is one by which *defect* ought to be found."""
    check = re.search(r"\b(FIFO|[CIPW]\d+)\b", text)
    return check is not None and check[0] in DEFECTS[defect].caught_by


def kinds_for(defect: str | None) -> tuple[str, ...]:
    """Return what runs with *defect* fight over."""
    return KINDS if defect is None else DEFECTS[defect].kinds


def in_cluster(defect: str | None) -> bool:
    """Return whether *defect* is looked for on the nodes of a Cluster."""
    return defect is not None and DEFECTS[defect].cluster


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Have the library with that defect, meanwhile; None: as it is.

    Raises:
        NotThere: The code has changed, and the defect must be written anew.
    """
    with ExitStack() as undo:
        if name is not None:
            DEFECTS[name].plant(Garden(undo))
        yield
