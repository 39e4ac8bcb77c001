"""Teeth: defects planted into the library while it runs, each of which the simulation must find.

How they are planted is in `tests.support.garden`.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

from tests.support.garden import Garden

from .defects_of_kinds import OF_KINDS
from .network import Network
from .planting import Defect, after, always, before, instead, marked, never
from .requests import scripts
from .wire import Wire

_OWNS = "string.sub(value, 1, #token + 1) == token .. ' '"
_WAITS = f"redis.call('ZSCORE', waiters, token .. ' ' .. terms .. ' {30 * '.'}')"

_CLOCK = "__import__('sys').modules['aiolocks._engine.context'].Context.clock()"


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
    instead("P10-release", f"local mine = value and (tombstone_ms == '00' or {_OWNS})")(garden)


def _client_clock(garden: Garden) -> None:
    """Every request brings the time that its process's machine shows, and leases end by that."""
    request = Network.request

    def request_with_time(self: Network, wire: Wire, fields: list[bytes]) -> None:
        if len(fields) > 3 and fields[3].startswith(b"aiolocks:semaphore:"):
            fields = [*fields, b"%d" % (wire.process.wall() * 1000)]
        request(self, wire, fields)

    garden.put(Network, "request", request_with_time)
    before("P9-uptime", "needed_s = nil")(garden)  # it is the time
    before("P9-known", "min_hold_ms = ARGV[9] and min_hold_ms")(garden)  # so here
    instead("P9-clock", "local now_ms = tonumber(ARGV[#ARGV])\nif entries then table.remove(entries) end")(garden)


DEFECTS: dict[str, Defect] = {
    "validity-from-the-reply": Defect(instead("P1-deadline", "self.deadline = begun + terms.valid_for"), ("P1", "C1")),
    "renewal-from-the-reply":
        Defect(instead("P1-renewal", "state.validity.extend(now + state.request.terms.valid_for)"), ("P1", "C1")),
    "no-local-expiry": Defect(instead("P1-deadline", "self.deadline = valid_from + 1e6"), ("P1", "C1")),
    "get-then-del-release": Defect(_get_then_del, ("P1", "C1")),
    "release-without-compare":
        Defect(instead("P10-release", f"local mine = value and ({_OWNS} or not {_WAITS})"), ("P1", "C1")),
    "renewal-recreates": Defect(
        before("P5-renew", "if not value then redis.call('SET', holder, token .. ' 1', 'PX', ttl_ms) return 1 end"),
        ("P8", "P1", "C2", "C3"),
    ),
    "renewal-shortens": Defect(always("P3-renew"), ("P3", "P1")),
    "fence-by-incr": Defect(always("P8-fence"), ("P8", "C2", "C3")),
    "no-tombstone": Defect(never("P7-tombstone"), ("P7",)),
    "client-clock-semaphore": Defect(_client_clock, ("P1", "P9", "C1", "P3")),
    "publish-count-instead-of-numsub": Defect(before(
        "W1-listens",
        "local told = redis.pcall('PUBLISH', channel, '')\ndo return type(told) == 'number' and told or 0 end",
    ), ("W1",)),
    "releasers-ttl": Defect(after("W4-terms", "ttl_ms = string.match(ARGV[2], '^%d+') or ttl_ms"), ("P1", "C1")),
    "counted-from-arrival": Defect(instead("P1-handed-over", f"valid_from = {_CLOCK}"), ("P1", "C1")),
    "recheck-creates": Defect(before(
        "W8-recheck", "if not number and not ticket then\n  local now, text = micros()\n"
        "  redis.call('ZADD', waiters, text, entry)\n  keep_queue()\n  answer = now\nend",
    ), ("W8",)),
    "no-undo": Defect(after("W5-undo", "return context.forget(request)"), ("P7", "C4")),
    "no-recheck":
        Defect(instead("W6-timer", "self._timer = self._context.loop.call_later(1e6, self.recheck)"), ("P13", "P7")),
    "newest-first": Defect(after("W2-first", "head = redis.call('ZRANGE', queue, '-1', '-1')[1]"), ("FIFO",)),
    "limit-forgotten": Defect(always("P9-limit"), ("P9",)),
    "ask-once-refused": Defect(before(
        "W10-free", "if existing == 0 and string.sub(ticket, 1, 1) == '-' then return { 'busy', -2, 0 } end",
    ), ("C3",)),
    "outage-not-ridden-out": Defect(instead("I4-outages", "again = lambda _: False"), ("I4",), cluster=True),
    "revoked-lease-is-renewed":
        marked(instead("W16-renew", "if not value or (string.match(value, '^(%S+)') or value) ~= token then"), "W16"),
    "adopted-under-the-old-fence": marked(instead(
        "W17-fence", "redis.call('SET', holder, token .. ' ' .. digits(number), 'PX', lasts)\ndo return number end",
    ), "P8", "C2", "C3"),
    "adopted-without-its-secret": marked(instead("W17-offered", "elseif not owner then"), "P1", "C1", "C3"),
    "min-hold-without-end": marked(instead("W18-ends", "redis.call('SET', holder, value .. ' C')"), "P13", "C4"),
    "waiter-not-told-when": marked(instead("W18-told", "local _ = head"), "P7", "P13"),
    **OF_KINDS,
}  # fmt: skip
"""One for each promise and rule that a schedule can break."""


def finds(defect: str, text: str) -> bool:
    """Return whether a violation is one by which *defect* ought to be found."""
    check = re.search(r"\b(FIFO|[CIPW]\d+)\b", text)
    return check is not None and check[0] in DEFECTS[defect].caught_by


def kinds_for(defect: str | None) -> tuple[str, ...]:
    return () if defect is None else DEFECTS[defect].kinds


def in_cluster(defect: str | None) -> bool:
    """Return whether *defect* is looked for on the nodes of a Cluster."""
    return defect is not None and DEFECTS[defect].cluster


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Have the library with that defect, meanwhile; None: as it is."""
    with ExitStack() as undo:
        if name is not None:
            DEFECTS[name].plant(Garden(undo))
        yield
