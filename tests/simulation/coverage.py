"""What a set of runs must have met, so that a simulation in which nothing happens cannot pass."""

from collections import Counter

FAULTS = (
    "FLUSHALL", "SCRIPT FLUSH", "connecting refused", "connecting swallowed", "connection closed by the server",
    "connection cut", "crash", "crash, half-open", "half-open connection", "late notice", "machine suspended",
    "message in pieces", "partition", "process ended politely", "process stopped", "reply lost", "request lost",
    "request repeated", "requests held", "server clock stepped", "server restarted empty",
    "server restarted with its data", "server stopped", "slow message", "wall clock of a process stepped",
    "way back swallowed",
)  # fmt: skip

PATHS = (
    "NOSCRIPT", "cancellations", "downgrades", "fencing tokens refused by a server", "grants",
    "grants found by a re-check", "grants of hierarchy", "grants of lock", "grants of multi", "grants of quorum",
    "grants of readwrite", "grants of reentrant", "grants of semaphore", "hand-offs to another session",
    "hand-offs within a session", "leases lost", "leases of hierarchy", "leases of lock", "leases of multilock",
    "leases of redlock", "leases of rlock", "leases of rwlock", "leases of semaphore", "newcomers answered shortly",
    "notices that there is more", "leases renewed together", "paths sealed with one fencing token",
    "raised AcquireTimeoutError", "raised ConnectionError", "raised LeaseLostError", "raised LimitMismatchError",
    "raised QuorumError", "re-checks", "re-entries with an old ticket", "re-entries within a block", "refusals sent",
    "renewals", "renewals refused", "replies that there is more", "requests of polling sessions", "resizes",
    "sessions passed over", "stale writes refused", "tombstones found", "tombstones written", "undos",
    "undos of a grant", "upgrades", "verdict busy", "verdict granted", "verdict queued", "verdict refused",
    "verdict withdrawn", "votes", "waiters found forgotten",
)  # fmt: skip

OF_CLUSTERS = (
    "answers ASK", "answers CLUSTERDOWN", "answers MOVED", "answers NOREPLICAS", "answers READONLY", "answers TRYAGAIN",
    "cluster down for a while", "key moved alone", "planned failover", "primary killed", "read only for a while",
    "replaced by an emptier one", "scripts that broke off", "slot held open", "slot moved", "slot moved to and fro",
    "too few replicas for a while",
)  # fmt: skip
"""What only a Cluster meets."""

_OF_SERVERS = {
    "fencing tokens refused by a server", "grants of quorum", "leases of redlock", "leases renewed together",
    "raised QuorumError", "server clock stepped", "votes",
}  # fmt: skip
"""What one never does."""


def missing(met: Counter[str], *, cluster: bool = False) -> list[str]:
    wanted = [what for what in (*FAULTS, *PATHS) if not (cluster and what in _OF_SERVERS)]
    return [what for what in (*wanted, *(OF_CLUSTERS if cluster else ())) if not met[what]]


def table(met: Counter[str]) -> str:
    """Return the figures, faults first."""
    rest = sorted(met.keys() - set(FAULTS) - set(PATHS))
    lines = [f"{met[what]:>10,}  {what}" for what in (*FAULTS, "", *PATHS, "", *rest)]
    return "\n".join(line if not line.endswith("0  ") else "" for line in lines)
