"""Measure aiolocks beside its peers and print tables, for all scenarios or the named ones."""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench import against, calm, event_loops
from bench.environment import describe
from bench.figures import Results
from bench.peers import PEERS
from bench.running import run_all
from bench.scale import TINY, Scale
from bench.scenario import Scenario
from bench.scenarios import SCENARIOS
from bench.scenarios.profile import PROFILE
from bench.tables import Report, aligned, bars_table

OWN = "aiolocks"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0, or 1 if aiolocks itself could not be measured somewhere. A slow run is a figure, not a failure.
    """
    parser = _parser()
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends servers and processes on its way
    scale = _scale(chosen)
    try:
        event_loops.check_installed(scale.loop)
    except ValueError as error:
        parser.error(str(error))
    if chosen.against:
        return _against(parser, chosen, scale)
    libraries = chosen.only or ([OWN] if chosen.profile else list(PEERS))
    scenarios = [PROFILE] if chosen.profile else [SCENARIOS[name] for name in chosen.scenario or SCENARIOS]
    circumstances = describe(libraries, scale.loop)
    print(aligned([["circumstance", "value"], *map(list, circumstances.items())]), flush=True)
    measured: dict[str, tuple[Scenario, Results]] = {}
    reports: dict[str, Report] = {}
    for scenario in scenarios:
        results = run_all(scenario, scale, libraries, _progress)
        measured[scenario.name] = scenario, results
        reports[scenario.name] = scenario.report(results, scale)
        _print(scenario, reports[scenario.name], calm.remark(results, scale.attempts))
        if chosen.json:  # after each, so that an interrupted run leaves what it has
            _write(chosen.json, _all(circumstances, scale, measured, reports))
    if chosen.picture:
        _draw(chosen.picture, measured, circumstances)
    return int(any(_failed(results) for _, results in measured.values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python .bench", description=__doc__)
    # Not `choices`: before Python 3.12 argparse would not accept that none is named.
    parser.add_argument("scenario", nargs="*", type=_scenario, help=f"{', '.join(SCENARIOS)}; all if left out")
    parser.add_argument("--runs", type=int, help="how often each is measured (5)")
    parser.add_argument("--seconds", type=float, help="how long each throughput is measured (3)")
    parser.add_argument("--only", metavar="LIBRARIES", type=_libraries, help=f"some of {','.join(PEERS)}")
    parser.add_argument("--loop", choices=event_loops.LOOPS, help="event loop of the measuring processes (asyncio)")
    parser.add_argument("--processes", type=int, help="processes that contend (2)")
    parser.add_argument("--waiters", type=int, help="waiters in each of them (100)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every figure of every run there")
    parser.add_argument("--picture", metavar="FILE", type=Path, help="draw the figures (.png, .svg; needs matplotlib)")
    parser.add_argument("--short", action="store_true", help="hold leases for one TTL only, instead of three")
    parser.add_argument("--tiny", action="store_true", help="the least of everything: only shows that the bench works")
    parser.add_argument(
        "--against",
        metavar="CHECKOUT",
        type=Path,
        help=f"measure that checkout's aiolocks in turns with this one's; slower means under {against.NO_SLOWER} of "
        "its speed, by the medians",
    )
    parser.add_argument("--profile", action="store_true", help="say instead where the microseconds go, by function")
    return parser


def _scenario(name: str) -> str:
    if name not in SCENARIOS:
        raise argparse.ArgumentTypeError(f"no scenario {name!r}; there are {', '.join(SCENARIOS)}")
    return name


def _libraries(text: str) -> list[str]:
    for library in text.split(","):
        if library not in PEERS:
            raise argparse.ArgumentTypeError(f"no library {library!r}; there are {', '.join(PEERS)}")
    return text.split(",")


def _scale(chosen: argparse.Namespace) -> Scale:
    given = {name: getattr(chosen, name) for name in ("runs", "seconds", "loop", "processes", "waiters")}
    given["held"] = 1.0 if chosen.short else None
    return replace(
        TINY if chosen.tiny else Scale(), **{name: value for name, value in given.items() if value is not None}
    )


def _against(parser: argparse.ArgumentParser, chosen: argparse.Namespace, scale: Scale) -> int:
    """Compare with another checkout; return 1 if one of the two could not be measured somewhere."""
    if chosen.only or chosen.profile or chosen.picture:
        parser.error("--against goes with none of --only, --profile and --picture")
    names = chosen.scenario or [name for name in SCENARIOS if name != "faults"]  # it has verdicts and no figures
    every: dict[str, against.Turns] = {}
    try:
        with against.versions(chosen.against) as pair:
            circumstances = describe([OWN], scale.loop) | {version.name: str(version) for version in pair}
            print(aligned([["circumstance", "value"], *map(list, circumstances.items())]), flush=True)
            for name in names:
                every[name] = against.run_in_turns(SCENARIOS[name], scale, pair, _progress)
                print(f"\n## {SCENARIOS[name].title}\n\n{against.table(every[name])}\n")
                print(*against.notes(every[name], scale.attempts), sep="\n\n", flush=True)
                if chosen.json:
                    _write(chosen.json, {"circumstances": circumstances, "scale": asdict(scale), "turns": every})
    except ValueError as error:
        parser.error(str(error))
    slower = [f"{name}, {what}" for name, turns in every.items() for what in against.slower(turns)]
    print("\nNo slower than the other." if not slower else "\nSlower than the other:\n" + "\n".join(slower))
    runs = [run for turns in every.values() for each in turns.values() for runs in each.values() for run in runs]
    return int(any(not run.figures for run in runs))


def _progress(line: str) -> None:
    sys.stderr.write(f"{line}\n")  # in one piece: several processes report here
    sys.stderr.flush()


def _print(scenario: Scenario, report: Report, remark: str) -> None:
    print(f"\n## {scenario.title}\n")
    for text in (*report.tables, *report.notes, *filter(None, [remark])):
        print(text, end="\n\n")
    if report.bars:
        print(bars_table(report.bars))
    sys.stdout.flush()


def _all(
    circumstances: dict[str, str],
    scale: Scale,
    measured: dict[str, tuple[Scenario, Results]],
    reports: dict[str, Report],
) -> dict[str, Any]:
    return {
        "circumstances": circumstances,
        "scale": asdict(scale),
        "runs": {
            name: {row: [asdict(run) for run in runs] for row, runs in results.items()}
            for name, (_, results) in measured.items()
        },
        "bars": {name: [asdict(bar) for bar in report.bars] for name, report in reports.items()},
    }


def _write(path: Path, figures: dict[str, Any]) -> None:
    path.write_text(json.dumps(figures, indent=1, default=asdict), encoding="utf-8")


def _draw(path: Path, measured: dict[str, tuple[Scenario, Results]], circumstances: dict[str, str]) -> None:
    try:
        from bench.picture import draw

        draw(path, measured, "; ".join(f"{name} {value}" for name, value in circumstances.items()))
    except ImportError:
        print("no picture: matplotlib is missing (pip install -e . --group bench)", file=sys.stderr)


def _failed(results: Results) -> bool:
    runs = [run for row, runs in results.items() if row.startswith(OWN) for run in runs]
    return any(not run.figures for run in runs)
