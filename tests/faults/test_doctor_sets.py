"""`aiolocks doctor` on what Sentinels watch, and on a Cluster."""

import json
import sys
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
import redis as synchronous

from tests.support.clusters import ClusterSet
from tests.support.sentinels import SERVICE, SentinelSet

pytestmark = [pytest.mark.redis, pytest.mark.faults]

ROOT = Path(__file__).parents[2]


def examined(url: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit status, and what was found."""
    ended = run(
        [sys.executable, "-m", "aiolocks", "doctor", "--json", "--url", url],
        capture_output=True, text=True, check=False, timeout=60, cwd=ROOT,
    )  # fmt: skip
    assert not ended.stderr
    return ended.returncode, json.loads(ended.stdout)["checks"]


def verdict(found: list[dict[str, Any]], check: str) -> set[str]:
    return {finding["verdict"] for finding in found if finding["check"] == check}


def test_behind_sentinels_a_primary_that_writes_alone_is_a_danger() -> None:
    with SentinelSet() as servers:
        hosts = ",".join(f"{host}:{port}" for host, port in servers.sentinel_addresses)
        url = f"redis+sentinel://{hosts}/{SERVICE}"
        status, found = examined(url)
        assert (status, verdict(found, "replication")) == (1, {"danger"})
        assert "min-replicas-to-write 1" in str(found)
        with synchronous.Redis.from_url(servers.primary().url) as primary:
            primary.config_set("min-replicas-to-write", 1)
        status, found = examined(url)
        assert (status, verdict(found, "replication")) == (0, {"ok"})
        assert verdict(found, "hand-over") == {"ok"}


def test_of_a_cluster_each_primary_is_examined() -> None:
    with ClusterSet() as servers:
        status, found = examined(servers.url)
        assert status == 0
        for check in ("server", "coverage", "replication", "eviction", "persistence", "clock", "latency"):
            assert len([finding for finding in found if finding["check"] == check]) == 3, check
        assert verdict(found, "coverage") == {"warning"}
        assert verdict(found, "hand-over") == {"ok"}
        with synchronous.Redis.from_url(servers.primaries()[0].url) as primary:
            primary.config_set("cluster-require-full-coverage", "no")
        assert verdict(examined(servers.url)[1], "coverage") == {"ok", "warning"}
