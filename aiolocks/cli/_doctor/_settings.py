"""Judges the settings of the server that matter to locks. Pure: the answers to INFO and CONFIG GET come as facts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from redis.exceptions import ResponseError

from .._connect import OLDEST
from ._finding import Finding, Verdict, unknown

_ASKED = ("appendfsync", "cluster-require-full-coverage", "min-replicas-to-write", "save")
"""Settings that only CONFIG GET returns."""

_NAMES = {"redis": "Redis", "valkey": "Valkey"}
"""The tested servers, by their names in INFO."""

_OLDEST_VALKEY = (8, 1)

_SHARDS_SINCE = 7

_NEARLY_FULL = 0.9

_CONFIG_RIGHT = "+config|get"

_OR_WAIT = "or have workers wait one ttl after a restart before they begin"


@dataclass(frozen=True, slots=True)
class Facts:
    """The fields of INFO and the settings of CONFIG; empty if this user may not ask."""

    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    config: Mapping[str, str] = field(default_factory=dict[str, str])


async def facts_of(client: Any) -> Facts:
    """Ask INFO and CONFIG GET. Either may be forbidden, or missing on a hosted server."""
    config: dict[str, str] = {}
    try:
        for name in _ASKED:
            config |= await client.config_get(name)
    except ResponseError:
        pass
    try:
        return Facts(await client.info(), config)
    except ResponseError:
        return Facts({}, config)


def server(facts: Facts) -> Finding:
    """Is it a supported Redis or Valkey?"""
    info = facts.info
    if not info:
        return unknown("server", "+info")
    kind = str(info.get("server_name", "redis"))
    # Valkey's redis_version and redis_mode are for clients that know no other names. It may omit redis_mode.
    release = str(info.get(f"{kind}_version", info.get("redis_version", "")))
    mode = str(info.get("redis_mode", info.get("server_mode", "standalone")))
    version = tuple(int(part) for part in release.split(".")[:2] if part.isdigit())
    name = f"{_NAMES.get(kind, kind)} {release}"
    figures = {"kind": kind, "version": release, "mode": mode}
    if mode == "sentinel":
        advice = "ask it for the primary (SENTINEL GET-MASTER-ADDR-BY-NAME) and examine that one"
        return Finding("server", Verdict.DANGER, "a Sentinel, which keeps no data and so no locks", advice, figures)
    if mode == "cluster":
        found = f"{name}, a node of a Cluster: a client of this node alone has only some of the names"
        advice = "give the Cluster: --url redis+cluster://HOST:PORT,HOST:PORT"
        return Finding("server", Verdict.DANGER, found, advice, figures)
    if kind not in _NAMES:
        found = f"{kind}, which speaks the protocol of Redis {info.get('redis_version', '?')}"
        return Finding("server", Verdict.WARNING, found, "aiolocks is tested on Redis and Valkey only", figures)
    if kind == "valkey" and version < _OLDEST_VALKEY:
        return Finding("server", Verdict.WARNING, name, "aiolocks is tested on Valkey 8.1 or newer", figures)
    if version < OLDEST:
        return Finding("server", Verdict.DANGER, name, "aiolocks needs Redis 6.2 or newer", figures)
    return Finding("server", Verdict.OK, f"{name}, {mode}", figures=figures)


def node(facts: Facts) -> Finding:
    """The same as `server`, for a node of a Cluster."""
    finding = server(Facts({**facts.info, "redis_mode": "standalone"} if facts.info else {}, facts.config))
    return replace(finding, found=finding.found.replace(", standalone", ", a node of a Cluster"))


def knows_shards(facts: Facts) -> bool:
    """Return True if the Cluster has sharded channels, or the node does not show its version."""
    major = str(facts.info.get("redis_version", "7")).partition(".")[0]
    return not major.isdigit() or int(major) >= _SHARDS_SINCE


def versions(nodes: Mapping[str, Facts]) -> Finding:
    """Do all primaries of a Cluster run the same version?"""
    found = {name: str(server(facts).figures.get("version", "")) for name, facts in nodes.items()}
    if not all(found.values()):
        return unknown("versions", "+info")
    figures = {"versions": found}
    if len(set(found.values())) == 1:
        return Finding("versions", Verdict.OK, f"all primaries run {next(iter(found.values()))}", figures=figures)
    each = ", ".join(f"{name} {version}" for name, version in found.items())
    advice = "bring all nodes to one version: one version may refuse commands that another accepts"
    return Finding("versions", Verdict.WARNING, f"the primaries run different versions: {each}", advice, figures)


def coverage(facts: Facts) -> Finding:
    """Can names be locked while the primary of other names is gone?"""
    setting = facts.config.get("cluster-require-full-coverage")
    if setting is None:
        return unknown("coverage", _CONFIG_RIGHT)
    if setting == "yes":
        found = "cluster-require-full-coverage is yes: while one primary is gone, nothing can be locked on any"
        advice = "CONFIG SET cluster-require-full-coverage no, if your program can work without some of the names"
        return Finding("coverage", Verdict.WARNING, found, advice)
    return Finding("coverage", Verdict.OK, "if a primary is gone, the names of the others can still be locked")


def replication(facts: Facts, *, behind_sentinels: bool = False) -> Finding:
    """Can a failover lose a lock?"""
    info = facts.info
    if not info:
        return unknown("replication", "+info")
    if info.get("role") == "slave":
        advice = f"give the --url of the primary: {info.get('master_host')}:{info.get('master_port')}"
        return Finding("replication", Verdict.DANGER, "this is a replica, which takes no writes", advice)
    replicas = int(info.get("connected_slaves", 0))
    good = info.get("min_slaves_good_slaves")  # there when min-replicas-to-write is set
    wanted = int(facts.config.get("min-replicas-to-write", 0 if good is None else 1))
    figures = {"replicas": replicas, "min_replicas_to_write": wanted}
    if good is not None and int(good) < wanted:
        found = f"min-replicas-to-write is {wanted}, good replicas connected: {good}, so every write is refused"
        return Finding("replication", Verdict.DANGER, found, "bring the replicas back, or lower the setting", figures)
    if good is not None:
        found = f"good replicas connected: {good}, min-replicas-to-write: {wanted}"
        advice = "a failover can still lose the last moment: let the resource check fencing tokens"
        return Finding("replication", Verdict.OK, found, advice, figures)
    if replicas:
        found = f"replicas: {replicas}, min-replicas-to-write: 0, so a primary cut off from them keeps granting"
        if behind_sentinels:
            found += " without end"
        advice = (
            f"{_set(facts, 'min-replicas-to-write 1 and min-replicas-max-lag 10')}; "
            "let the resource check fencing tokens, because a failover can lose locks"
        )
        # Sentinels promote a replica, so two holders are possible as long as the partition lasts.
        verdict = Verdict.DANGER if behind_sentinels else Verdict.WARNING
        return Finding("replication", verdict, found, advice, figures)
    return Finding("replication", Verdict.OK, "no replicas, so no failover that could lose locks", figures=figures)


def eviction(facts: Facts) -> Finding:
    """Can the server evict live locks?"""
    info = facts.info
    if "maxmemory_policy" not in info:
        return unknown("eviction", "+info")
    policy, most, used = str(info["maxmemory_policy"]), int(info["maxmemory"]), int(info["used_memory"])
    figures = {"policy": policy, "maxmemory": most, "used_memory": used, "evicted": int(info.get("evicted_keys", 0))}
    advice = _set(facts, "maxmemory-policy noeviction")
    if policy != "noeviction" and most:
        found = f"{policy} removes live locks when the {_bytes(most)} of maxmemory are full ({_bytes(used)} now)"
        return Finding("eviction", Verdict.DANGER, found, advice, figures)
    if policy != "noeviction":
        found = f"{policy}, though without maxmemory nothing is removed yet"
        return Finding("eviction", Verdict.WARNING, found, advice, figures)
    if most and used > _NEARLY_FULL * most:
        found = f"noeviction, but {_bytes(used)} of {_bytes(most)} are used: at the limit nothing more is granted"
        return Finding("eviction", Verdict.WARNING, found, "raise maxmemory, or use another server for locks", figures)
    return Finding("eviction", Verdict.OK, "noeviction", figures=figures)


def persistence(facts: Facts) -> Finding:
    """Can a restart lose locks, or restore old ones?"""
    info, config = facts.info, facts.config
    if "aof_enabled" not in info:
        return unknown("persistence", "+info", _CONFIG_RIGHT)
    figures = {"aof": bool(info["aof_enabled"]), **{name: config[name] for name in _ASKED if name in config}}
    if info["aof_enabled"]:
        return _append_only(info, config.get("appendfsync"), figures)
    advice = f"appendonly yes and appendfsync always, {_OR_WAIT}"
    if "save" not in config:
        found = "no append-only file: a restart loses locks, or restores those of the last snapshot"
    elif config["save"]:
        found = "snapshots only: a restart loses newer locks, and restores older ones"
    else:
        found = "none: a restart loses every lock"
    return Finding("persistence", Verdict.WARNING, found, advice, figures)


def _append_only(info: Mapping[str, Any], fsync: str | None, figures: dict[str, Any]) -> Finding:
    if info.get("aof_last_write_status", "ok") != "ok":
        found = "the last write to the append-only file failed, and Redis refuses writes until one succeeds"
        return Finding("persistence", Verdict.DANGER, found, "check the disk space and the server's log", figures)
    if fsync is None:
        found = "append-only file, but this user may not ask whether each write is on disk at once"
        advice = f"give the right {_CONFIG_RIGHT}, or set appendfsync always"
        return Finding("persistence", Verdict.UNKNOWN, found, advice, figures)
    if fsync == "always":
        return Finding("persistence", Verdict.OK, "append-only file, each write on disk at once", figures=figures)
    lost = "the last second" if fsync == "everysec" else "all that was not written yet"
    found = f"append-only file with appendfsync {fsync}: a crash of the machine loses {lost}"
    return Finding("persistence", Verdict.WARNING, found, f"appendfsync always, {_OR_WAIT}", figures)


def _set(facts: Facts, setting: str) -> str:
    """Return how to change a setting. Managed servers forbid CONFIG."""
    if facts.config:
        return f"CONFIG SET {setting}"
    return f"set {setting}: on a managed server in its parameter group or console, elsewhere with CONFIG SET"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
