"""`aiolocks doctor`: report dangers to locks on a server, with advice."""

import argparse
import asyncio
import json
import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from ..._core.keys import Keys
from ..._redis import clients
from ..._redis.urls import SCHEME
from .. import _arguments
from .._connect import answering, client_of, connect, place_of
from .._nodes import Primaries, primaries
from .._screen import WIDTH, Line, Screen
from . import _replicas, _settings, _timing
from ._finding import Finding, Verdict, away, exit_status
from ._holders import endless
from ._rights import missing_rights, rights, wake_ups
from ._trial import hand_over, not_tried, refused

if TYPE_CHECKING:
    from .._arguments import Commands

_MAX_WIDTH = 120
"""Maximum number of columns of the report."""

_STYLES = {
    Verdict.OK: "bold green",
    Verdict.WARNING: "bold yellow",
    Verdict.DANGER: "bold red",
    Verdict.UNKNOWN: "bold magenta",
}


def register(commands: "Commands") -> None:
    """Add this command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="find dangers to locks on a server",
        description="Find dangers to locks on a server, with advice. The exit status is 1 if there is a danger (with "
        "--strict: if anything is not ok), 2 if the server, or a primary of the Cluster, cannot be reached, else 0.",
    )
    _arguments.add_url(parser)
    parser.add_argument(
        "--ttl", type=_arguments.ttl, default=30.0, help="TTL of your leases in seconds, 30 if left out"
    )
    _arguments.add_prefix(parser)
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings and unknowns too")
    _arguments.add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    url = _arguments.url_of(arguments)
    place = SCHEME if url.startswith(SCHEME) else place_of(url)
    try:
        findings = asyncio.run(_examine_all(url, place, arguments.ttl, arguments.prefix))
    finally:
        _wait_for("")
    status = exit_status(findings, strict=arguments.strict)
    if arguments.json:
        print(json.dumps(_report(place, arguments, findings), indent=2))
    else:
        Screen().write(*_lines(place, arguments.ttl, findings, _width()))
    return status


def _wait_for(what: str) -> None:
    """Show the present step on a terminal, in place of the last one."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what and what + ' …'}", end="", file=sys.stderr, flush=True)


def _width() -> int:
    """Return the width of the report: that of the terminal, from 80 to 120 columns."""
    return min(max(shutil.get_terminal_size().columns, WIDTH), _MAX_WIDTH) if sys.stdout.isatty() else WIDTH


async def _examine_all(url: str, place: str, ttl: float, prefix: str) -> list[Finding]:
    findings = await _examine(url, place, ttl, prefix)
    if url.startswith(SCHEME):
        return findings
    _wait_for("searching for holders that are gone")
    return [*findings, *await endless(url, prefix)]


async def _examine(url: str, place: str, ttl: float, prefix: str) -> list[Finding]:
    name = f"doctor-{os.urandom(6).hex()}"
    if url.startswith(SCHEME):
        return await _examine_memory(url, prefix, name)
    if "+cluster://" in url:
        return await _examine_cluster(url, ttl, prefix, name)
    async with answering(url, place, ", or correct --url") as client:
        _wait_for("asking for its settings")
        facts = await _settings.facts_of(client)
        server = _settings.server(facts)
        if server.figures.get("mode", "standalone") != "standalone":
            return [server]  # only the right server can answer the other checks
        _wait_for("trying each command that locks need")
        missing, refusal = await missing_rights(client, prefix, name)
        _wait_for("comparing clocks and measuring how fast it answers")
        samples = await _timing.sample(client)
        findings = [
            server,
            _settings.replication(facts, behind_sentinels="+sentinel://" in url),
            *_of_server(facts, samples, ttl),
            *await _of_replicas(client, facts, samples, ttl),
            rights(missing, prefix),
            wake_ups(missing, prefix),
        ]
        if refusal:
            return [*findings, refused(refusal)]
        if missing:
            return [*findings, not_tried("rights are missing")]
        _wait_for("handing a lock from one session to another")
        async with client_of(url) as other:
            return [*findings, await hand_over(client, other, prefix, name, url)]


async def _of_replicas(client: Any, facts: _settings.Facts, samples: list[_timing.Sample], ttl: float) -> list[Finding]:
    """Return the finding about the clocks of the server's replicas, if it has any."""
    found = await _replicas.clocks_of(client, facts.info)
    return [_replicas.clocks(samples, found, ttl)] if found else []


def _of_server(facts: _settings.Facts, samples: list[_timing.Sample], ttl: float) -> list[Finding]:
    return [
        _settings.eviction(facts),
        _settings.persistence(facts),
        _timing.clock(samples, ttl),
        _timing.latency(samples, ttl),
    ]


async def _examine_cluster(url: str, ttl: float, prefix: str, name: str) -> list[Finding]:
    """Examine each primary, and try a hand-over of one name."""
    findings: list[Finding] = []
    facts_of = dict[str, _settings.Facts]()
    problems: list[Finding] = []
    async with primaries(url) as there:
        for node in there.nodes:
            place = clients.place_of(node.connection_pool)
            _wait_for(f"examining {place}")
            facts = facts_of[place] = await _settings.facts_of(node)
            samples = await _timing.sample(node)
            of_replicas = await _of_replicas(node, facts, samples, ttl)
            sharded = _settings.knows_shards(facts)
            name_there = _name_at(there, node, prefix, name)
            missing, refusal = await missing_rights(node, prefix, name_there, of_node=True, sharded=sharded)
            if refusal or missing:
                problems.append(refused(refusal) if refusal else not_tried("rights are missing"))
            each = [
                _settings.node(facts),
                _settings.coverage(facts),
                _settings.replication(facts),
                *_of_server(facts, samples, ttl),
                *of_replicas,
                rights(missing, prefix),
                wake_ups(missing, prefix),
            ]
            findings += [replace(finding, found=f"{place}: {finding.found}") for finding in each]
        findings += map(away, there.missing)
        findings.append(_settings.versions(facts_of))
        if there.missing:
            problems.append(not_tried("a primary does not answer"))
        if problems:
            return [*findings, problems[0]]
        async with client_of(url) as one, client_of(url) as other:
            return [*findings, await hand_over(one, other, prefix, name, url)]


def _name_at(there: Primaries, node: Any, prefix: str, name: str) -> str:
    """Return a name whose keys are on *node*, one of the primaries that answer."""
    tried = (f"{name}-{number}" for number in count())
    return next(one for one in tried if there.at(Keys(prefix, "lock", one).base) is node)


async def _examine_memory(url: str, prefix: str, name: str) -> list[Finding]:
    found = "in the memory of one process: it excludes no other process, and ends with this one"
    async with connect(url, name) as server, connect(server.url, name) as again:
        trial = await hand_over(server.locks.client, again.locks.client, prefix, name, url)
    return [Finding("server", Verdict.OK, found), trial]


def _report(place: str, arguments: argparse.Namespace, findings: Sequence[Finding]) -> dict[str, object]:
    return {
        "server": place,
        "ttl": arguments.ttl,
        "prefix": _arguments.masked(arguments.prefix),
        "status": exit_status(findings, strict=arguments.strict),
        "checks": [
            {
                "check": finding.check,
                "verdict": finding.verdict,
                "found": finding.found,
                "advice": finding.advice,
                "figures": dict(finding.figures),
            }
            for finding in findings
        ],
    }


def _lines(place: str, ttl: float, findings: Sequence[Finding], columns: int) -> list[Line]:
    lines: list[Line] = [[("aiolocks doctor", "bold"), (f" on {place}, for leases of {ttl:g} s", "")], []]
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        indent = " " * (width + 14)
        first, *more = textwrap.wrap(finding.found, columns - len(indent))
        mark = (f"   {finding.verdict:7}", _STYLES[finding.verdict])
        lines.append([mark, (f"  {finding.check:{width}}  ", "bold"), (first, "")])
        lines += [[(indent + line, "")] for line in more]
        advice = textwrap.wrap(finding.advice, columns - len(indent), initial_indent="-> ", subsequent_indent="   ")
        lines += [[(indent + line, "dim")] for line in advice]
    return [*lines, [], _summary(findings)]


def _summary(findings: Sequence[Finding]) -> Line:
    count = Counter(finding.verdict for finding in findings)
    worst = next((verdict for verdict in (Verdict.DANGER, Verdict.WARNING, Verdict.UNKNOWN) if count[verdict]), None)
    if worst is None:
        return [("Fit for locks.", _STYLES[Verdict.OK])]
    counts = [
        f"{count[verdict]} {word}{'s' if count[verdict] > 1 else ''}"
        for verdict, word in ((Verdict.DANGER, "danger"), (Verdict.WARNING, "warning"), (Verdict.UNKNOWN, "unknown"))
        if count[verdict]
    ]
    return [(", ".join(counts) + ".", _STYLES[worst])]
