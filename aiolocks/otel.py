"""OpenTelemetry: what happens to locks in this process as metrics, and as spans of the traces that ask for them.

Written for `opentelemetry-api` alone, over `aiolocks.events`. The one rule: what many acquisitions cost must not be
what their metrics cost. So counts are kept here and read when metrics are collected; only the histograms are told each
duration, and where there are thousands a second, one in so many.
"""

import os
import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, final, get_args

from ._core import VERSION
from ._core.events import Event, Kind, on_event

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import Span, Status, StatusCode, TracerProvider
except ImportError as missing:
    raise ImportError("aiolocks.otel needs the extra 'otel' of aiolocks") from missing

__all__ = ["collapsed", "instrument"]

BOUNDARIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds; those of OpenTelemetry's conventions for durations, and more at both ends."""

MOST_NAMES = 200
"""Names of each primitive that are told apart; all others are `OTHER` together."""

OTHER = "other"

LONGEST_LABEL = 120
"""Characters of a name that are told."""

MOST_RECORDED = 100
"""Durations a second of which a histogram is told each one; to record one costs as much as to count a hundred."""

_MOST_UNCOUNTED = 256
"""Events that wait to be counted: together they take half the time that each takes alone."""

_MOST_REMEMBERED = 4096
"""Names of which it is remembered what they were made."""

_COUNTED = {
    "acquired": ("{lease}", "Leases that were acquired"),
    "timed_out": ("{acquisition}", "Acquisitions whose caller's time was over"),
    "cancelled": ("{acquisition}", "Acquisitions whose caller was cancelled"),
    "failed": ("{acquisition}", "Acquisitions that ended with an error"),
    "renewed": ("{renewal}", "Renewals that the server confirmed"),
    "renewal_failed": ("{renewal}", "Renewals that the server did not confirm"),
    "released": ("{lease}", "Leases that their holder has let go"),
    "lost": ("{lease}", "Leases that ended before they were released"),
    "revoked": ("{lease}", "Leases that were taken back from their holder"),
    "handed_over": ("{lease}", "Leases that a release handed to a waiter of the same process"),
    "stalled": ("{lease}", "Leases not renewed as the event loop showed no life"),
    "polling": ("{event}", "Times that waiters could not be told of their turn, and began to poll"),
    "limit_differs": ("{event}", "Times that a semaphore's limit was found to be another than declared"),
}

_ENDS_WAIT = {"acquired", "timed_out", "cancelled", "failed"}
_ENDS_HOLD = {"released", "lost", "revoked"}
_ERRORS = {"timed_out", "failed", "lost", "revoked"}

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+")
_HEX = re.compile(r"[0-9a-f]{8,}", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")


def collapsed(name: str) -> str:
    """Return *name* with `*` in place of what looks like an id: ``orders:42`` and ``orders:43`` are ``orders:*``.

    Ids are UUIDs, hexadecimal words from 8 digits on, words from 8 characters on that have a digit, and runs of digits.
    What is the same of the names of a `MultiLock` stands once.
    """
    found = _WORD.sub(_without_id, _UUID.sub("*", name))
    return ", ".join(dict.fromkeys(found.split(", ")))


def _without_id(match: "re.Match[str]") -> str:
    word = match[0]
    if _HEX.fullmatch(word) or (len(word) >= 8 and _DIGITS.search(word)):
        return "*"
    return _DIGITS.sub("*", word)


@final
class _Series:
    """What is counted of one primitive and name."""

    __slots__ = ("attributes", "counts", "held", "label", "outcomes", "waiting")

    def __init__(self, primitive: str, label: str) -> None:
        self.label = label
        self.attributes: dict[str, str] = {}
        if primitive:  # what concerns a client has none
            self.attributes = {"aiolocks.primitive": primitive, "aiolocks.name": label}
        self.counts = dict.fromkeys(get_args(Kind), 0)
        self.waiting = 0
        self.held = 0
        self.outcomes = {
            outcome: {**self.attributes, "aiolocks.outcome": outcome} for outcome in _ENDS_WAIT | _ENDS_HOLD
        }


@final
class _Thinned:
    """A histogram that is told every duration, or every n-th where there are thousands a second."""

    __slots__ = ("_before", "_record", "_since", "count", "due")

    def __init__(self, record: Callable[[float, dict[str, str]], None]) -> None:
        self._record = record
        self._since = 0.0
        self._before = 0
        self.count = 0
        """Durations in this second; who has one counts it, and records it if this is then what is `due` or more."""
        self.due = 1

    def begin(self, now: float) -> None:
        """See whether another second has begun."""
        if now - self._since >= 1.0:
            self._before = self.count if now - self._since < 2.0 else 0
            self._since, self.count, self.due = now, 0, 1 + self._before // MOST_RECORDED

    def thin(self, now: float) -> None:
        """Say which is due next, after one that was."""
        rate = max(self._before, self.count)
        if self.count > MOST_RECORDED:  # the second is not over
            rate = max(rate, round(self.count / max(now - self._since, 0.01)))
        self.due = self.count + 1 + rate // MOST_RECORDED

    def record(self, seconds: float, attributes: dict[str, str]) -> None:
        self._record(max(seconds, 0.0), attributes)


@final
class _Instruments:
    """Those of one meter provider, which knows no way to take them back: so they are made once."""

    def __init__(self, provider: MeterProvider) -> None:
        self._in_use: object = None
        self._lock = threading.Lock()  # events come from the threads of all loops, and readers from their own
        self._series: dict[tuple[str, str], _Series] = {}
        self._named: dict[tuple[str, str], _Series] = {}
        self._uncounted: deque[tuple[Kind, _Series, float, int]] = deque()
        self._waiting: dict[int, _Series] = {}
        self._held: dict[int, _Series] = {}
        self._spans: dict[int, tuple[Span, int]] = {}
        """Of leases, and when they began, in ns."""
        self._name_of: Callable[[str], str] = collapsed
        self._tracer = trace.get_tracer("aiolocks", VERSION)
        meter = metrics.get_meter("aiolocks", VERSION, provider)
        boundaries = list(BOUNDARIES)
        self._wait_duration = _Thinned(
            meter.create_histogram(
                "aiolocks.wait.duration",
                "s",
                "Time from when a caller asked until it had its lease, or gave up",
                explicit_bucket_boundaries_advisory=boundaries,
            ).record
        )
        self._hold_duration = _Thinned(
            meter.create_histogram(
                "aiolocks.hold.duration",
                "s",
                "Time from when a caller had its lease until that ended",
                explicit_bucket_boundaries_advisory=boundaries,
            ).record
        )
        meter.create_observable_up_down_counter(
            "aiolocks.waiting", [partial(self._observe, _waiting)], "{waiter}", "Callers that wait for a lease"
        )
        meter.create_observable_up_down_counter(
            "aiolocks.held", [partial(self._observe, _holding)], "{lease}", "Leases that are held"
        )
        for kind, (unit, description) in _COUNTED.items():
            meter.create_observable_counter(
                f"aiolocks.{kind}", [partial(self._observe, partial(_count_of, kind))], unit, description
            )
        _forget_in_fork(self)

    def use(self, tracer_provider: TracerProvider | None, name_of: Callable[[str], str]) -> Callable[[], None]:
        """Begin to note events; return what ends that."""
        with self._lock:
            if self._in_use is not None:
                raise RuntimeError(
                    "aiolocks is instrumented for this meter provider already: first call what instrument() returned"
                )
            self._in_use = use = object()
            self._tracer = trace.get_tracer("aiolocks", VERSION, tracer_provider)
            self._name_of = name_of
            self._named.clear()
        unsubscribe = on_event(self.note)

        def uninstrument() -> None:
            unsubscribe()
            self.count()
            with self._lock:
                if self._in_use is not use:
                    return
                self._in_use = None
                spans = list(self._spans.values())
                self._forget()
            for span, _ in spans:
                span.end()

        return uninstrument

    def _forget(self) -> None:
        """Take nothing for held or awaited any more."""
        for tracked in (self._uncounted, self._held, self._waiting, self._spans):
            tracked.clear()
        for series in self._series.values():
            series.held = series.waiting = 0

    def after_fork(self) -> None:
        """In a forked child: what the parent holds is not held here, and one of its threads may have had the lock."""
        self._lock = threading.Lock()
        self._forget()

    def note(self, event: Event) -> None:
        """Take an event: spans begin and end at once, and it is counted later, when somebody reads or many wait."""
        kind, name, primitive, seconds, _, number = event
        series = self._named.get((primitive, name)) or self._series_of(primitive, name)
        self._uncounted.append((kind, series, seconds, number))
        if kind in _ENDS_WAIT:
            if _is_traced():
                self.count()  # here, as a histogram may keep the current span as an example of a duration
                traced = self._trace(event, series)
                if kind == "acquired":
                    self._spans[number] = traced
        elif self._spans and (traced_lease := self._spans.get(number)) is not None:
            span, began = traced_lease
            if kind in _ENDS_HOLD:
                self._spans.pop(number, None)
                _end(span, kind, began + round(seconds * 1e9))
            elif kind in ("renewal_failed", "stalled"):
                span.add_event(f"aiolocks.{kind}")
        if len(self._uncounted) >= _MOST_UNCOUNTED:
            self.count()

    def count(self) -> None:
        """Count what has been noted."""
        uncounted, waiting, held = self._uncounted, self._waiting, self._held
        waits, holds = self._wait_duration, self._hold_duration
        durations: list[tuple[_Thinned, float, dict[str, str]]] = []
        with self._lock:
            now = time.monotonic()
            waits.begin(now)
            holds.begin(now)
            while uncounted:  # nobody else takes of them
                kind, series, seconds, number = uncounted.popleft()
                series.counts[kind] += 1
                if kind in _ENDS_HOLD:
                    if held.pop(number, None) is not None:
                        series.held -= 1
                    holds.count += 1
                    if holds.count >= holds.due:
                        holds.thin(now)
                        durations.append((holds, seconds, series.outcomes[kind]))
                elif kind == "waiting":
                    waiting[number] = series
                    series.waiting += 1
                elif kind in _ENDS_WAIT:
                    if kind == "acquired":
                        held[number] = series
                        series.held += 1
                    if waiting and waiting.pop(number, None) is not None:
                        series.waiting -= 1
                    waits.count += 1
                    if waits.count >= waits.due:
                        waits.thin(now)
                        durations.append((waits, seconds, series.outcomes[kind]))
        for histogram, seconds, attributes in durations:
            histogram.record(seconds, attributes)

    def _trace(self, event: Event, series: _Series) -> tuple[Span, int]:
        """Add a span of the wait to the trace of the task that asked, and return one of the lease that begins now, with
        the time, in ns.

        A callback is called in that task, whose current span is the parent of both.
        """
        now_ns = time.time_ns()
        began = now_ns - round(event.seconds * 1e9)
        span = self._tracer.start_span(f"acquire {series.label}", attributes=series.attributes, start_time=began)
        _end(span, event.kind, now_ns)
        if event.kind != "acquired":
            return span, now_ns
        attributes: dict[str, Any] = {**series.attributes, "aiolocks.fencing_token": event.fencing_token}
        return self._tracer.start_span(f"hold {series.label}", attributes=attributes, start_time=now_ns), now_ns

    def _series_of(self, primitive: str, name: str) -> _Series:
        """Return what an event counts for: its own name's, or that of all others where there are too many names."""
        label = self._name_of(name)[:LONGEST_LABEL] if name else ""
        with self._lock:
            if (primitive, label) not in self._series and (
                sum(other == primitive for other, _ in self._series) >= MOST_NAMES
            ):
                label = OTHER
            series = self._series.get((primitive, label))
            if series is None:
                series = self._series[primitive, label] = _Series(primitive, label)
            if len(self._named) >= _MOST_REMEMBERED:
                self._named.clear()
            self._named[primitive, name] = series
        return series

    def _observe(self, value: Callable[[_Series], int | None], _: CallbackOptions) -> Iterable[Observation]:
        self.count()
        with self._lock:
            found = [(value(series), series.attributes) for series in self._series.values()]
        return [Observation(number, attributes) for number, attributes in found if number is not None]


def _is_traced() -> bool:
    """Say whether the caller is in a span that is recorded; most are in none, and that is cheaper to see."""
    return bool(context.get_current()) and trace.get_current_span().is_recording()


def _waiting(series: _Series) -> int | None:
    return series.waiting if series.attributes else None


def _holding(series: _Series) -> int | None:
    return series.held if series.attributes else None


def _count_of(kind: str, series: _Series) -> int | None:
    return series.counts[kind] or None


def _end(span: Span, outcome: str, at_ns: int) -> None:
    span.set_attribute("aiolocks.outcome", outcome)
    if outcome in _ERRORS:
        span.set_attribute("error.type", outcome)
        span.set_status(Status(StatusCode.ERROR, outcome))
    span.end(at_ns)


_made: "weakref.WeakKeyDictionary[MeterProvider, _Instruments]" = weakref.WeakKeyDictionary()

_making = threading.Lock()


def _forget_in_fork(instruments: _Instruments) -> None:
    reference = weakref.ref(instruments)

    def forked() -> None:
        found = reference()
        if found is not None:
            found.after_fork()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forked)


def instrument(
    *,
    meter_provider: MeterProvider | None = None,
    tracer_provider: TracerProvider | None = None,
    name_of: Callable[[str], str] = collapsed,
) -> Callable[[], None]:
    """Give OpenTelemetry metrics of all locks and their kin in this process, and spans to traces that use them.

    ::

        from aiolocks.otel import instrument

        uninstrument = instrument()

    Metrics, with the attributes ``aiolocks.primitive`` and ``aiolocks.name``, and the durations with
    ``aiolocks.outcome`` too, which is the kind of the event that ended it:

    * ``aiolocks.wait.duration`` and ``aiolocks.hold.duration``: histograms, in seconds. From 100 durations a second
      on they are told one in two, from 200 on one in three and so on, as each costs as much as half an acquisition;
      the counters count all;
    * ``aiolocks.waiting``, ``aiolocks.held``: how many callers wait and how many leases are held just now;
    * ``aiolocks.acquired``, ``aiolocks.timed_out``, ``aiolocks.lost`` and a counter for every other kind of
      `aiolocks.events.Event` but ``waiting``, by its name.

    Spans, where the current span of the task that asks is recorded: ``acquire NAME`` and ``hold NAME``, beside each
    other below it. No trace begins with a lock. The span of a lease may end after that of its parent.

    Args:
        meter_provider: Whose metrics they are; the global one if left out.
        tracer_provider: Whose spans they are; the global one if left out.
        name_of: Returns what a name is called, in metrics and spans. It should make few of many, for each is a series
            of its own: beyond 200 for a primitive, further ones are called ``other``. Left out: `collapsed`. One that
            raises is logged, and the event is not counted.

    Returns:
        A function that ends it; further calls do nothing. Counters then stay as they are.

    Raises:
        RuntimeError: It was done for this meter provider already, and not ended.
    """
    provider = metrics.get_meter_provider() if meter_provider is None else meter_provider
    with _making:
        instruments = _made.get(provider)
        if instruments is None:
            instruments = _made[provider] = _Instruments(provider)
    return instruments.use(tracer_provider, name_of)
