"""Where the microseconds of a pair go, by function: for one task, and for the most tasks, each on its own lock."""

from collections.abc import Sequence

from bench.figures import Case, Parameters, Results, Run, spread
from bench.sampling import Sampler
from bench.scale import Scale
from bench.scenario import Scenario, Server
from bench.scenarios import one_task, own_locks
from bench.tables import Report, aligned, number

_LONGEST = 30
_OWN, _WHOLE = "own ", "whole "


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    tasks = max(scale.tasks)
    return [
        *(
            Case(f"{case.row}, one task", case.library, {**case.parameters, "tasks": 1})
            for case in one_task.cases(scale, libraries)
        ),
        *(case for case in own_locks.cases(scale, libraries) if case.parameters["tasks"] == tasks),
    ]


async def measure(library: str, parameters: Parameters, server: Server) -> Run:
    run_it = one_task.measure if parameters["tasks"] == 1 else own_locks.measure
    with Sampler() as sampler:
        run = await run_it(library, parameters, server)
    us = 1e6 / run.figures["pairs_per_s"] / max(sampler.samples, 1)
    run.figures["us_per_pair"] = us * sampler.samples
    for name, count in sampler.own.items():
        run.figures[_OWN + name] = us * count
    for name, count in sampler.whole.items():
        run.figures[_WHOLE + name] = us * count
    return run


def report(results: Results, scale: Scale) -> Report:
    return Report(
        [_table(row, runs) for row, runs in results.items()],
        notes=["Warm-up and end are in the sample; with fewer than some thousand looks, small shares mean nothing."],
    )


def _table(row: str, runs: Sequence[Run]) -> str:
    names = {name.removeprefix(_OWN) for run in runs for name in run.figures if name.startswith(_OWN)}
    costs = {name: (_us(runs, _OWN + name), _us(runs, _WHOLE + name)) for name in names}
    all_of_it = _us(runs, "us_per_pair")
    lines = [[f"{row} ({number(all_of_it, 1)} µs/pair)", "own µs", "own %", "with callees µs"]]
    for name, (own, whole) in sorted(costs.items(), key=lambda item: -item[1][0])[:_LONGEST]:
        share = 100 * own / all_of_it if all_of_it else 0.0
        lines.append([f"`{name}`", number(own, 2), number(share, 1), number(whole, 2)])
    return aligned(lines)


def _us(runs: Sequence[Run], figure: str) -> float:
    found = spread(runs, figure)
    return 0.0 if found is None else found.median


PROFILE = Scenario("profile", "Where the microseconds go", cases, measure, report)
