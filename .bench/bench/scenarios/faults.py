"""Six situations in which something goes wrong: which library copes, and what the others do instead.

Each has one criterion, the same for all libraries, which every user of a lock must be able to rely on.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bench.figures import Case, Parameters, Results, Run, spread
from bench.scale import Scale
from bench.scenario import Scenario, Server
from bench.scenarios import crashes
from bench.situations import MANY, SOON, blocked_loop, cancelled_acquire, cancelled_release, found, lost_reply
from bench.tables import NOTHING, Bar, Report, aligned

OWN = "aiolocks"
_COMPARED = (OWN, "redis-py", "redis-fifo-lock", "py-redis-semaphore", "pottery", "coredis")


@dataclass(frozen=True, slots=True)
class Situation:
    """What happens, what must hold, and how it is tried: with a library, a lease's ttl in seconds, and a server."""

    title: str
    criterion: str
    trial: Callable[[str, float, Server], Awaitable[Run]]


async def _crashed_holder(library: str, ttl: float, server: Server) -> Run:
    run = await crashes.measure(library, {"what": "holder", "ttl": ttl}, server)
    if "takeover_ms" not in run.figures:
        return found(False, f"next waiter served {run.remarks[0]}")
    after = run.figures["takeover_ms"] / 1000
    return found(after <= ttl + SOON, "next waiter served {seconds} s after the death", after)


async def _dead_waiters(library: str, ttl: float, server: Server) -> Run:
    run = await crashes.measure(library, {"what": "killed", "ttl": ttl, "waiters": MANY}, server)
    if "delay_ms" not in run.figures:
        return found(False, f"next living waiter served {run.remarks[0]}")
    delay = run.figures["delay_ms"] / 1000
    return found(delay <= SOON, "next living waiter served after {seconds} s", delay)


SITUATIONS = {
    "lost-reply": Situation(
        "lost reply",
        "the first reply to the request is lost with its connection: the caller has the lock within 0.5 s and can "
        "release it, or gets an error and nothing is left behind",
        lost_reply,
    ),
    "cancelled-acquire": Situation(
        "cancelled acquire",
        "ten callers are cancelled while their requests are on their way: soon after those have arrived, all ten "
        "locks are free",
        cancelled_acquire,
    ),
    "cancelled-release": Situation(
        "cancelled release",
        "ten tasks are cancelled at ten instants of leaving their block: soon after, all ten locks are free",
        cancelled_release,
    ),
    "crashed-holder": Situation(
        "crashed holder",
        "SIGKILL right after the grant: the next waiter has the lock within the ttl and 0.5 s",
        _crashed_holder,
    ),
    "dead-waiters": Situation(
        "dead waiters",
        "ten waiters are killed, then the holder releases: the next living waiter has the lock within 0.5 s",
        _dead_waiters,
    ),
    "blocked-loop": Situation(
        "blocked loop",
        "the holder blocks its loop for two ttl, while another process waits: it still has the lock, or it is stopped "
        "by an error at its first await",
        blocked_loop,
    ),
}
"""In the order of the table."""


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    return [
        Case(f"{library}: {name}", library, {"situation": name, "ttl": scale.fault_ttl})
        for name in SITUATIONS
        for library in libraries
        if library in _COMPARED
    ]


async def measure(library: str, parameters: Parameters, server: Server) -> Run:
    return await SITUATIONS[str(parameters["situation"])].trial(library, float(parameters["ttl"]), server)


def report(results: Results, scale: Scale) -> Report:
    libraries = list(dict.fromkeys(row.rpartition(": ")[0] for row in results))
    lines = [["situation", *libraries]]
    for name, situation in SITUATIONS.items():
        lines.append([situation.title, *(_cell(results.get(f"{library}: {name}", ())) for library in libraries)])
    criteria = [f"* {situation.title}: {situation.criterion}" for situation in SITUATIONS.values()]
    notes = [f"Leases last {scale.fault_ttl:g} s. What passes:", "\n".join(criteria)]
    return Report([aligned(lines)], _bars(results), notes)


def _cell(runs: Sequence[Run]) -> str:
    """Return one library's verdict in one situation, and each different thing that happened, with its figure."""
    if not runs:
        return NOTHING
    texts = []
    for text in dict.fromkeys(remark for run in runs for remark in run.remarks):
        alike = [run for run in runs if text in run.remarks]
        times = f" ({len(alike)} of {len(runs)} times)" if len(alike) < len(runs) else ""
        texts.append(text.replace("{seconds}", _seconds(alike)) + times)
    passed = [run.figures.get("passed") for run in runs]
    if None in passed:
        return "; ".join(texts)
    return f"{'passes' if all(passed) else 'FAILS'}: {'; '.join(texts)}"


def _seconds(runs: Sequence[Run]) -> str:
    found = spread(runs, "seconds")
    if found is None:
        return NOTHING
    least, greatest = f"{found.least:.2f}", f"{found.greatest:.2f}"
    return f"{found.median:.2f}" if least == greatest else f"{found.median:.2f} ({least}–{greatest})"


def _bars(results: Results) -> list[Bar]:
    runs = [run for row, runs in results.items() if row.startswith(f"{OWN}: ") for run in runs]
    if not runs:
        return [Bar("aiolocks passes all six", NOTHING, None)]
    passed = sum(run.figures.get("passed", 0.0) == 1 for run in runs)
    return [Bar("aiolocks passes all six", f"{passed} of {len(runs)}", passed == len(runs))]


SCENARIO = Scenario("faults", "When things go wrong", cases, measure, report)
