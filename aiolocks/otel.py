"""OpenTelemetry: metrics of all locks in this process, and spans in the traces that acquire them.

Needs `opentelemetry-api` alone, and listens to `aiolocks.events`. The one rule: events are queued, and counted together
when 256 wait or when metrics are collected, because that takes half the time.
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
"""Bounds in seconds: those of OpenTelemetry's conventions for durations, and more at both ends."""

MAX_NAMES = 200
"""Maximum number of labels per primitive. All further names share the label `OTHER`."""

OTHER = "other"

MAX_LABEL = 120
"""Maximum number of characters in a label."""

_MAX_UNCOUNTED = 256
"""Maximum number of events that wait to be counted."""

_MAX_CACHED = 4096
"""Maximum number of names whose series are cached."""

_COUNTED = {
    "acquired": ("{lease}", "Leases that were acquired"),
    "timed_out": ("{acquisition}", "Acquisitions that timed out"),
    "cancelled": ("{acquisition}", "Acquisitions whose caller was cancelled"),
    "failed": ("{acquisition}", "Acquisitions that ended with an error"),
    "renewed": ("{renewal}", "Renewals that the server confirmed"),
    "renewal_failed": ("{renewal}", "Renewals that the server did not confirm"),
    "endangered": ("{lease}", "Times that a lease was not renewed for half of its TTL"),
    "released": ("{lease}", "Leases that their holder released"),
    "lost": ("{lease}", "Leases that ended before they were released"),
    "revoked": ("{lease}", "Leases that were taken back from their holder"),
    "handed_over": ("{lease}", "Leases that a release handed to a waiter of the same process"),
    "stalled": ("{lease}", "Leases not renewed because the event loop was blocked"),
    "polling": ("{event}", "Times that waiters began to poll, because wake-ups did not reach them"),
    "limit_differs": ("{event}", "Times that a semaphore's limit on the server differed from the declared one"),
    "paused": ("{event}", "Times that this process paused a semaphore"),
}

_ENDS_WAIT = {"acquired", "timed_out", "cancelled", "failed"}
_ENDS_HOLD = {"released", "lost", "revoked"}
_ERRORS = {"timed_out", "failed", "lost", "revoked"}

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+")
_HEX = re.compile(r"[0-9a-f]{8,}", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")


def collapsed(name: str) -> str:
    """Return *name* with `*` in place of ids: ``orders:42`` and ``orders:43`` both become ``orders:*``.

    Ids are UUIDs, hexadecimal words of 8 digits or more, words of 8 characters or more with a digit, and runs of
    digits. For a `MultiLock`, names that become the same are listed once.
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
    """The counts of one primitive and label."""

    __slots__ = ("attributes", "counts", "held", "label", "outcomes", "waiting")

    def __init__(self, primitive: str, label: str) -> None:
        self.label = label
        self.attributes: dict[str, str] = {}
        if primitive:  # events of a client have no primitive
            self.attributes = {"aiolocks.primitive": primitive, "aiolocks.name": label}
        self.counts = dict.fromkeys(get_args(Kind), 0)
        self.waiting = 0
        self.held = 0
        self.outcomes = {
            outcome: {**self.attributes, "aiolocks.outcome": outcome} for outcome in _ENDS_WAIT | _ENDS_HOLD
        }


@final
class _Instruments:
    """The instruments of one meter provider. A provider cannot remove instruments, so they are made once.

    Invariant: `_waiting` and `_held` are the acquisitions behind the two gauges, by number.
    """

    def __init__(self, provider: MeterProvider) -> None:
        self._in_use: object = None
        self._lock = threading.Lock()  # the threads of all loops emit events, and readers have threads of their own
        self._series: dict[tuple[str, str], _Series] = {}
        self._cached: dict[tuple[str, str], _Series] = {}
        self._uncounted: deque[tuple[Kind, _Series, float, int]] = deque()
        self._waiting: dict[int, _Series] = {}
        self._held: dict[int, _Series] = {}
        self._spans: dict[int, tuple[Span, int]] = {}
        """The span of each traced lease, and its start in ns."""
        self._name_of: Callable[[str], str] = collapsed
        self._tracer = trace.get_tracer("aiolocks", VERSION)
        meter = metrics.get_meter("aiolocks", VERSION, provider)
        self._record_wait, self._record_hold = (
            meter.create_histogram(name, "s", meaning, explicit_bucket_boundaries_advisory=list(BOUNDARIES)).record
            for name, meaning in (
                ("aiolocks.wait.duration", "Time from the request until the caller had its lease, or gave up"),
                ("aiolocks.hold.duration", "Time from the grant until the lease ended"),
            )
        )
        meter.create_observable_up_down_counter(
            "aiolocks.waiting",
            [partial(self._observe, lambda series: series.waiting if series.attributes else None)],
            "{waiter}",
            "Callers that wait for a lease",
        )
        meter.create_observable_up_down_counter(
            "aiolocks.held",
            [partial(self._observe, lambda series: series.held if series.attributes else None)],
            "{lease}",
            "Leases that are held",
        )
        for kind, (unit, description) in _COUNTED.items():
            meter.create_observable_counter(
                f"aiolocks.{kind}", [partial(self._observe, partial(_count_of, kind))], unit, description
            )
        _clear_in_fork(self)

    def use(self, tracer_provider: TracerProvider | None, name_of: Callable[[str], str]) -> Callable[[], None]:
        """Start to record events; return a function that stops it."""
        with self._lock:
            if self._in_use is not None:
                raise RuntimeError(
                    "aiolocks is already instrumented for this meter provider: first call what instrument() returned"
                )
            self._in_use = use = object()
            self._tracer = trace.get_tracer("aiolocks", VERSION, tracer_provider)
            self._name_of = name_of
            self._cached.clear()
        unsubscribe = on_event(self.note)

        def uninstrument() -> None:
            unsubscribe()
            self.count()
            with self._lock:
                if self._in_use is not use:
                    return
                self._in_use = None
                spans = list(self._spans.values())
                self._clear()
            for span, _ in spans:
                span.end()

        return uninstrument

    def _clear(self) -> None:
        """Treat no name as held or awaited."""
        for tracked in (self._uncounted, self._held, self._waiting, self._spans):
            tracked.clear()
        for series in self._series.values():
            series.held = series.waiting = 0

    def after_fork(self) -> None:
        """Reset in a forked child. It holds no lease of the parent, and a parent's thread may have held `_lock`."""
        self._lock = threading.Lock()
        self._clear()

    def note(self, event: Event) -> None:
        """Start or end spans for *event* now, and queue it to be counted."""
        kind, name, primitive, seconds, _, number, _ = event
        series = self._cached.get((primitive, name)) or self._series_of(primitive, name)
        self._uncounted.append((kind, series, seconds, number))
        if kind in _ENDS_WAIT:
            if _is_traced():
                self.count()  # now: a histogram may record the current span as an exemplar
                traced = self._trace(event, series)
                if kind == "acquired":
                    self._spans[number] = traced
        elif self._spans and (traced_lease := self._spans.get(number)) is not None:
            span, began = traced_lease
            if kind in _ENDS_HOLD:
                self._spans.pop(number, None)
                if event.note:
                    span.set_attribute("aiolocks.note", event.note)
                _end(span, kind, began + round(seconds * 1e9))
            elif kind in ("renewal_failed", "endangered", "stalled"):
                span.add_event(f"aiolocks.{kind}")
        if len(self._uncounted) >= _MAX_UNCOUNTED:
            self.count()

    def count(self) -> None:
        """Count the queued events, and record every duration."""
        uncounted, waiting, held = self._uncounted, self._waiting, self._held
        durations: list[tuple[Callable[[float, dict[str, str]], None], float, dict[str, str]]] = []
        with self._lock:
            while uncounted:  # only the holder of `_lock` removes events
                kind, series, seconds, number = uncounted.popleft()
                series.counts[kind] += 1
                if kind in _ENDS_HOLD:
                    if held.pop(number, None) is not None:
                        series.held -= 1
                    durations.append((self._record_hold, seconds, series.outcomes[kind]))
                elif kind == "waiting":
                    waiting[number] = series
                    series.waiting += 1
                elif kind in _ENDS_WAIT:
                    if kind == "acquired":
                        held[number] = series
                        series.held += 1
                    if waiting and waiting.pop(number, None) is not None:
                        series.waiting -= 1
                    durations.append((self._record_wait, seconds, series.outcomes[kind]))
        for record, seconds, attributes in durations:
            record(max(seconds, 0.0), attributes)

    def _trace(self, event: Event, series: _Series) -> tuple[Span, int]:
        """Add a span of the wait, and return a new span of the lease and its start in ns.

        Listeners run in the task that asked, so its current span is the parent of both.
        """
        now_ns = time.time_ns()
        began = now_ns - round(event.seconds * 1e9)
        noted = {"aiolocks.note": event.note} if event.note else {}  # of a span, never of a metric
        named = {**series.attributes, **noted}
        span = self._tracer.start_span(f"acquire {series.label}", attributes=named, start_time=began)
        _end(span, event.kind, now_ns)
        if event.kind != "acquired":
            return span, now_ns
        attributes: dict[str, Any] = {**named, "aiolocks.fencing_token": event.fencing_token}
        return self._tracer.start_span(f"hold {series.label}", attributes=attributes, start_time=now_ns), now_ns

    def _series_of(self, primitive: str, name: str) -> _Series:
        """Return the series of *name*, or the one of `OTHER` if there are `MAX_NAMES` labels already."""
        label = self._name_of(name)[:MAX_LABEL] if name else ""
        with self._lock:
            if (primitive, label) not in self._series and (
                sum(other == primitive for other, _ in self._series) >= MAX_NAMES
            ):
                label = OTHER
            series = self._series.get((primitive, label))
            if series is None:
                series = self._series[primitive, label] = _Series(primitive, label)
            if len(self._cached) >= _MAX_CACHED:
                self._cached.clear()
            self._cached[primitive, name] = series
        return series

    def _observe(self, value: Callable[[_Series], int | None], _: CallbackOptions) -> Iterable[Observation]:
        self.count()
        with self._lock:
            found = [(value(series), series.attributes) for series in self._series.values()]
        return [Observation(number, attributes) for number, attributes in found if number is not None]


def _is_traced() -> bool:
    """Return True if the current span is recorded. Most callers have no context at all, a cheaper test."""
    return bool(context.get_current()) and trace.get_current_span().is_recording()


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


def _clear_in_fork(instruments: _Instruments) -> None:
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
    """Give OpenTelemetry metrics of all primitives in this process, and spans in the traces that acquire them.

    ::

        from aiolocks.otel import instrument

        uninstrument = instrument()

    Metrics have the attributes ``aiolocks.primitive`` and ``aiolocks.name``:

    * ``aiolocks.wait.duration`` and ``aiolocks.hold.duration``: histograms of all durations, in seconds. Their
      attribute ``aiolocks.outcome`` is the kind of the event that ended the wait or the lease.
    * ``aiolocks.waiting`` and ``aiolocks.held``: the number of waiting callers and of live leases.
    * ``aiolocks.acquired``, ``aiolocks.timed_out``, ``aiolocks.lost`` and so on: a counter for each kind of
      `aiolocks.events.Event`, except ``waiting``.

    Spans are ``acquire NAME`` and ``hold NAME``, both children of the current span of the task that acquires, if that
    span is recorded. A lock starts no trace. The span of a lease can end after its parent. A note of a lease is the
    attribute ``aiolocks.note`` of its spans, and of no metric.

    Args:
        meter_provider: Provider of the metrics. Left out, the global one.
        tracer_provider: Provider of the spans. Left out, the global one.
        name_of: Function that returns the label of a name in metrics and spans. It should map many names to few labels,
            because each label is a series. After 200 labels of a primitive, further names are labelled ``other``. If
            it raises, the error is logged and the event is not counted.

    Returns:
        A function that stops it. Counters then keep their values. Further calls do nothing.

    Raises:
        RuntimeError: This meter provider is instrumented already.
    """
    provider = metrics.get_meter_provider() if meter_provider is None else meter_provider
    with _making:
        instruments = _made.get(provider)
        if instruments is None:
            instruments = _made[provider] = _Instruments(provider)
    return instruments.use(tracer_provider, name_of)
