"""The result of one check: a verdict, the facts and advice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """How dangerous it is for locks."""

    OK = "ok"
    WARNING = "warning"
    """Dangerous after a restart, a failover or a step of a clock."""
    DANGER = "danger"
    """Locks do not work, or two holders of one lock are possible, without any other failure."""
    UNKNOWN = "unknown"
    """This user may not ask."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One entry of the report. `figures` are for scripts."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict[str, Any])


def unknown(check: str, *rights: str) -> Finding:
    advice = f"give the right {' '.join(rights)}, or ask the server's administrator"
    return Finding(check, Verdict.UNKNOWN, "this user may not ask the server", advice)


def away(place: str) -> Finding:
    """Return the finding about a primary of a Cluster that does not answer."""
    advice = "start it, or promote a replica of it; until then its names cannot be locked or examined"
    return Finding("server", Verdict.DANGER, f"{place}: does not answer", advice, {"away": place})


def exit_status(findings: Sequence[Finding], *, strict: bool) -> int:
    """Return 2 if a primary is `away`, 1 if there is a danger (with *strict*: if anything is not ok), else 0."""
    if any("away" in finding.figures for finding in findings):
        return 2
    bad = {Verdict.DANGER} if not strict else set(Verdict) - {Verdict.OK}
    return 1 if any(finding.verdict in bad for finding in findings) else 0
