"""What one check says: a verdict, what was found, and what to do about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """How much it matters to locks."""

    OK = "ok"
    WARNING = "warning"
    """A restart, a failover or a step of a clock would endanger them."""
    DANGER = "danger"
    """They do not work, or two can hold the same one, without anything else going wrong."""
    UNKNOWN = "unknown"
    """The server does not tell this user."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line or short block of the report; `figures` are for scripts."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict[str, Any])


def unknown(check: str, *rights: str) -> Finding:
    return Finding(
        check,
        Verdict.UNKNOWN,
        "the server does not tell this user",
        f"give the right {' '.join(rights)}, or ask the server's administrator",
    )


def away(place: str) -> Finding:
    """Return the finding about a primary of a Cluster that does not answer."""
    advice = "start it, or promote a replica of it; until then its names cannot be locked, and nothing is known of them"
    return Finding("server", Verdict.DANGER, f"{place}: does not answer", advice, {"away": place})


def exit_status(findings: Sequence[Finding], *, strict: bool) -> int:
    """Return 2 when a primary is `away`, 1 when there is a danger or, with *strict*, anything that is not ok."""
    if any("away" in finding.figures for finding in findings):
        return 2
    bad = {Verdict.DANGER} if not strict else set(Verdict) - {Verdict.OK}
    return 1 if any(finding.verdict in bad for finding in findings) else 0
