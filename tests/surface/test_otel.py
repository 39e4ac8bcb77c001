"""`aiolocks.otel`: what a collector sees of locks, by OpenTelemetry's own SDK."""

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from aiolocks import AcquireTimeoutError, LeaseLostError, Lock
from aiolocks._core.events import Event, emit
from aiolocks.otel import BOUNDARIES, MAX_NAMES, collapsed, instrument
from aiolocks.testing import After, ScriptedGrantor
from tests.support.answering import Answering, session_of
from tests.support.cases import one_by_one
from tests.support.jumping import jumping

OF_JOBS = {"aiolocks.primitive": "stub", "aiolocks.name": "job:*"}


class Collector:
    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.exporter = InMemorySpanExporter()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.tracers.get_tracer("the test")

    def begin(self, **options: Any) -> Callable[[], None]:
        return instrument(meter_provider=self.meters, tracer_provider=self.tracers, **options)

    def metrics(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        of_resources = [] if data is None else data.resource_metrics
        found = [metric for of in of_resources for metric in of.scope_metrics[0].metrics]
        return {metric.name.removeprefix("aiolocks."): metric for metric in found}

    def values(self, name: str) -> dict[str, Any]:
        """Return by the name of the lock what is counted."""
        metric = self.metrics().get(name)
        points = [] if metric is None else metric.data.data_points
        return {point.attributes.get("aiolocks.name", ""): point.value for point in points}

    def durations(self, name: str) -> dict[str, tuple[int, float]]:
        """Return by outcome how many durations there are, and their sum."""
        metric = self.metrics()[f"{name}.duration"]
        return {point.attributes["aiolocks.outcome"]: (point.count, point.sum) for point in metric.data.data_points}

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.meters.shutdown()
    collector.tracers.shutdown()


@pytest.fixture
def instrumented(collector: Collector) -> Iterator[Collector]:
    end = collector.begin()
    yield collector
    end()


@jumping
async def test_it_counts_what_happens(instrumented: Collector) -> None:
    grantor = ScriptedGrantor(name="job:42", grants=[1, 2, "queued"])
    async with grantor.hold(ttl=30):
        await asyncio.sleep(12)
    async with grantor.hold(ttl=30):
        with pytest.raises(AcquireTimeoutError):
            async with grantor.hold(timeout=3):
                pytest.fail("the body ran")
    assert {name: instrumented.values(name) for name in ("acquired", "released", "timed_out", "renewed", "lost")} == {
        "acquired": {"job:*": 2}, "released": {"job:*": 2}, "timed_out": {"job:*": 1}, "renewed": {"job:*": 1},
        "lost": {},
    }  # fmt: skip
    assert not instrumented.spans(), "no trace begins with a lock"


@jumping
async def test_durations_are_in_seconds_and_a_loss_or_time_out_is_an_error(instrumented: Collector) -> None:
    grantor = ScriptedGrantor(name="a", grants=[After(0.25, 1), "queued"], renewals=[ConnectionError(), False])
    with instrumented.tracer.start_as_current_span("a request"):
        with pytest.raises(LeaseLostError):
            async with grantor.hold(ttl=30):
                await asyncio.sleep(60)
        with pytest.raises(AcquireTimeoutError):
            async with grantor.hold(timeout=3):
                pytest.fail("the body ran")
    assert instrumented.durations("wait") == {"acquired": (1, 0.25), "timed_out": (1, 3.0)}
    ((outcome, (count, seconds)),) = instrumented.durations("hold").items()
    assert (outcome, count) == ("lost", 1)
    assert 8 < seconds < 12
    wait = instrumented.metrics()["wait.duration"]
    assert wait.unit == "s"
    assert tuple(wait.data.data_points[0].explicit_bounds) == BOUNDARIES
    hold, vain = instrumented.spans()["hold a"], instrumented.exporter.get_finished_spans()[-2]
    assert (hold.status.status_code, (hold.attributes or {})["error.type"]) == (StatusCode.ERROR, "lost")
    assert [event.name for event in hold.events] == ["aiolocks.renewal_failed"]
    assert (vain.name, (vain.attributes or {})["error.type"]) == ("acquire a", "timed_out")


@jumping
async def test_the_gauges_count_waiters_and_leases_of_the_moment(instrumented: Collector) -> None:
    grantor = ScriptedGrantor(name="job:42", grants=[1, "queued"])
    lease = await grantor.acquire()
    waiters = [asyncio.create_task(grantor.acquire()) for _ in range(3)]
    await asyncio.sleep(1)
    assert (instrumented.values("held"), instrumented.values("waiting")) == ({"job:*": 1}, {"job:*": 3})
    await lease.release()
    waiters[0].cancel()
    grantor.hand_over(7)
    await asyncio.sleep(1)
    assert (instrumented.values("held"), instrumented.values("waiting")) == ({"job:*": 1}, {"job:*": 1})
    waiters[1].cancel()
    await asyncio.sleep(1)
    await (await waiters[2]).release()
    assert (instrumented.values("held"), instrumented.values("waiting")) == ({"job:*": 0}, {"job:*": 0})


@jumping
async def test_a_trace_gets_spans_of_the_wait_and_of_the_lease(instrumented: Collector) -> None:
    grantor = ScriptedGrantor(name="job:42", grants=[After(0.5, 7)])
    with instrumented.tracer.start_as_current_span("a request") as parent:
        async with grantor.hold():
            await asyncio.sleep(5)
    await asyncio.sleep(0)
    spans = instrumented.spans()
    assert set(spans) == {"acquire job:*", "hold job:*", "a request"}
    acquire, hold = spans["acquire job:*"], spans["hold job:*"]
    assert {span.parent.span_id for span in (acquire, hold) if span.parent} == {parent.get_span_context().span_id}
    assert duration_of(acquire) == pytest.approx(0.5)
    assert duration_of(hold) == pytest.approx(5)
    assert dict(acquire.attributes or {}) == {**OF_JOBS, "aiolocks.outcome": "acquired"}
    assert dict(hold.attributes or {}) == {**OF_JOBS, "aiolocks.outcome": "released", "aiolocks.fencing_token": 7}
    assert {span.status.status_code for span in (acquire, hold)} == {StatusCode.UNSET}


@jumping
async def test_a_note_is_of_spans_and_of_no_metric(instrumented: Collector) -> None:
    server = Answering(lambda asked: {"lock_grant": 7}.get(asked.what, 1))
    with instrumented.tracer.start_as_current_span("a request"):
        async with session_of(server), Lock(server.client(), "job:42", note="begins") as lease:
            await lease.note("ends")
    spans = instrumented.spans()
    noted = [(spans[name].attributes or {}).get("aiolocks.note") for name in ("acquire job:*", "hold job:*")]
    assert noted == ["begins", "ends"]
    instrumented.meters.force_flush()
    assert "begins" not in repr(instrumented.metrics())
    assert "ends" not in repr(instrumented.metrics())


@jumping
async def test_spans_belong_to_the_trace_of_the_task_that_asked(instrumented: Collector) -> None:
    async def request(name: str, grantor: ScriptedGrantor) -> int:
        with instrumented.tracer.start_as_current_span(name) as span:
            async with grantor.hold():
                await asyncio.sleep(3)
            return span.get_span_context().span_id

    grantor = ScriptedGrantor(name="a", grants=["queued"])
    tasks = [asyncio.create_task(request(name, grantor)) for name in ("first", "second")]
    await asyncio.sleep(1)
    for at, waiting in enumerate(grantor.requests):
        waiting.grant(at + 1)
    parents = [await task for task in tasks]
    held = [span for span in instrumented.exporter.get_finished_spans() if span.name == "hold a"]
    assert [span.parent.span_id for span in held if span.parent] == parents


def duration_of(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


@one_by_one("name, label", [
    ("orders", "orders"), ("orders:42", "orders:*"), ("s3:sync", "s*:sync"),
    ("user:550e8400-e29b-41d4-a716-446655440000:cart", "user:*:cart"), ("blob/9f86d081884c7d65", "blob/*"),
    ("blob/deadbeef", "blob/*"), ("job 01ARZ3NDEKTSV4RRFFQ69G5FAV", "job *"), ("report_2026-11-23", "report_*-*-*"),
    ("account:1, account:2, account:3", "account:*"), ("shop/orders/42", "shop/orders/*"), ("café:7", "café:*"),
    ("façade", "façade"),
])  # fmt: skip
def test_ids_in_names_collapse(name: str, label: str) -> None:
    assert collapsed(name) == label


def happens(name: str, kind: Any = "acquired", number: int = 1, seconds: float = 0.1) -> None:
    emit(Event(kind, name, "lock", seconds, 1, number))


def test_a_caller_s_own_function_says_what_a_name_is_called(collector: Collector) -> None:
    end = collector.begin(name_of=lambda name: name.partition(":")[0])
    happens("orders:eu:mine")
    assert collector.values("acquired") == {"orders": 1}
    end()


def test_there_are_not_more_names_than_a_collector_can_bear(instrumented: Collector) -> None:
    for number in range(3 * MAX_NAMES):
        word = "".join(chr(ord("g") + int(digit)) for digit in str(number))
        happens(f"of {word}", number=number)
        happens(f"of {word}", "released", number=number)
    acquired = instrumented.values("acquired")
    assert len(acquired) == MAX_NAMES + 1
    assert acquired["other"] == 2 * MAX_NAMES
    assert instrumented.values("held")["other"] == 0


def test_a_very_long_name_is_cut_and_what_concerns_a_client_has_none(instrumented: Collector) -> None:
    happens("of " + "x" * 5000)
    emit(Event("polling", "", "", 1.0))
    cut = {"of " + "x" * 117: 1}
    assert [instrumented.values(name) for name in ("acquired", "held", "polling")] == [cut, cut, {"": 1}]


def test_of_thousands_of_durations_a_second_every_one_is_recorded(instrumented: Collector) -> None:
    for number in range(5000):
        happens("a", number=number, seconds=0.5)
    assert instrumented.durations("wait") == {"acquired": (5000, 2500.0)}
    assert instrumented.values("acquired") == {"a": 5000}


def test_metrics_can_end_and_begin_again_and_the_first_end_does_not_end_the_second(collector: Collector) -> None:
    ended = collector.begin()
    ended()
    for turn in (1, 2):
        end = collector.begin()
        ended()
        happens("a", number=turn)
        with pytest.raises(RuntimeError, match="already"):
            collector.begin()
        end()
        end()
        happens("a", number=10 + turn)
        assert collector.values("acquired") == {"a": turn}
        assert collector.values("held") == {"a": 0}


def test_without_an_sdk_the_metrics_do_nothing_and_no_harm() -> None:
    end = instrument()
    happens("a")
    happens("a", "released")
    end()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_holds_nothing(instrumented: Collector) -> None:
    happens("a")
    child = os.fork()
    if child == 0:
        os._exit(instrumented.values("held") != {"a": 0})
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert instrumented.values("held") == {"a": 1}
