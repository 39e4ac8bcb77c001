"""What the doctor makes of numbers, and that it asks for whatever the scripts need."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aiolocks
from aiolocks._core.timing import margin
from aiolocks.cli._doctor import _settings
from aiolocks.cli._doctor._finding import Finding, Verdict, exit_status
from aiolocks.cli._doctor._rights import BROADCASTS, attempts
from aiolocks.cli._doctor._settings import Facts
from aiolocks.cli._doctor._timing import Sample, clock, latency, offset
from tests.support.cases import one_by_one
from tests.support.clients import documented_rights

MEMORY = {"maxmemory": 1_000_000, "used_memory": 950_000, "maxmemory_policy": "noeviction"}

delays = st.floats(0, 5)


def one(ahead: float, there: float, back: float, at: float = 1e9) -> Sample:
    """The answer of a server whose clock is *ahead*, with the time that question and answer were on their way."""
    return Sample(at, at + there + ahead, at + there + back, there + back)


@given(st.floats(-1e6, 1e6), st.lists(st.tuples(delays, delays), min_size=1, max_size=10))
def test_clocks_differ_within_the_bounds_however_uneven_the_way(ahead: float, ways: list[tuple[float, float]]) -> None:
    middle, doubt = offset([one(ahead, there, back) for there, back in ways])
    assert abs(middle - ahead) <= doubt + 1e-6
    assert doubt <= min(there + back for there, back in ways) / 2 + 1e-6


def test_a_clock_that_is_set_while_it_is_asked_is_judged_by_the_best_answer() -> None:
    assert offset([one(0, 0.5, 0.5), one(60, 0.001, 0.001)]) == pytest.approx((60, 0.001), abs=1e-6)


@one_by_one(
    "ahead, verdict",
    [(0, "ok"), (1.2, "ok"), (-1.2, "ok"), (2, "warning"), (-19, "warning"), (21, "danger"), (-3600, "danger")],
)
def test_a_clock_is_a_danger_when_setting_it_right_would_outlast_a_lease(ahead: float, verdict: str) -> None:
    """A lease of 30 s has a margin of 1.3 s, and 20 s left when it is renewed."""
    found = clock([one(ahead, 0.001, 0.001)], 30)
    assert found.verdict == verdict
    assert ("NTP" in found.advice) == (verdict != "ok")


def test_a_clock_is_never_blamed_for_a_slow_way() -> None:
    assert clock([one(0, 10, 0)], 30).verdict == Verdict.OK


def test_a_clock_that_is_further_off_than_a_short_lease_lasts_endangers_that() -> None:
    assert margin(0.2) < 0.1 < 0.2 * 2 / 3 < 0.15
    assert [clock([one(ahead, 0, 0)], 0.2).verdict for ahead in (0.1, 0.15)] == ["warning", "danger"]


@pytest.mark.parametrize(("worst", "verdict"), [(0.5, "ok"), (1.5, "warning"), (11, "danger")])
def test_latency_is_judged_by_how_often_leases_are_renewed(worst: float, verdict: str) -> None:
    found = latency([one(0, 0.001, 0), one(0, worst, 0)], 30)
    assert found.verdict == verdict
    assert ("ttl" in found.advice) == (verdict != "ok")


VALKEY = {"redis_version": "7.2.4", "server_name": "valkey", "server_mode": "standalone"}
"""As Valkey tells it: the version of Redis that it began as, and its own by another name."""


@one_by_one(
    "info, verdict, found, advice",
    [
        ({"redis_version": "8.0.2", "redis_mode": "standalone"}, "ok", "Redis 8.0.2, standalone", ""),
        (VALKEY | {"valkey_version": "9.1.2"}, "ok", "Valkey 9.1.2, standalone", ""),
        (VALKEY | {"valkey_version": "8.1.1"}, "ok", "Valkey 8.1.1, standalone", ""),
        (VALKEY | {"valkey_version": "8.0.4"}, "warning", "Valkey 8.0.4", "Valkey 8.1 or newer"),
        ({"redis_version": "6.0.16"}, "danger", "Redis 6.0.16", "6.2 or newer"),
        ({"redis_version": "6.2.0"}, "ok", "Redis 6.2.0, standalone", ""),
        ({"redis_version": "10.0.1"}, "ok", "Redis 10.0.1, standalone", ""),
        (
            {"redis_version": "7.2.0", "server_name": "other"},
            "warning",
            "other, which speaks the protocol of Redis 7.2.0",
            "Redis and Valkey",
        ),
    ],
)
def test_a_server_is_called_by_its_own_name_and_version_and_too_old_it_is_a_danger(
    info: dict[str, str], verdict: str, found: str, advice: str
) -> None:
    finding = _settings.server(Facts(info))
    assert (finding.verdict, finding.found) == (verdict, found)
    assert advice in finding.advice
    assert bool(finding.advice) == (verdict != "ok")
    assert finding.figures["kind"] == info.get("server_name", "redis")
    assert str(finding.figures["version"]) in finding.found


@pytest.mark.parametrize(("mode", "says"), [("cluster", "node of a Cluster"), ("sentinel", "Sentinel")])
def test_a_valkey_of_another_kind_is_a_danger_too(mode: str, says: str) -> None:
    finding = _settings.server(Facts(VALKEY | {"valkey_version": "9.1.2", "server_mode": mode}))
    assert (finding.verdict, finding.figures["mode"]) == ("danger", mode)
    assert says in finding.found


def test_a_full_server_is_a_warning_and_a_file_that_cannot_be_written_a_danger() -> None:
    assert _settings.eviction(Facts(MEMORY)).verdict == Verdict.WARNING
    assert _settings.eviction(Facts(MEMORY | {"used_memory": 500_000})).verdict == Verdict.OK
    facts = Facts({"aof_enabled": 1, "aof_last_write_status": "err"}, {"appendfsync": "always"})
    assert _settings.persistence(facts).verdict == Verdict.DANGER


def test_only_a_danger_makes_the_exit_status_1_unless_strict() -> None:
    for verdict in Verdict:
        findings = [Finding("a", Verdict.OK, ""), Finding("b", verdict, "")]
        assert exit_status(findings, strict=False) == (verdict == Verdict.DANGER)
        assert exit_status(findings, strict=True) == (verdict != Verdict.OK)


def test_the_doctor_tries_each_command_that_a_script_calls_and_each_right_that_the_readme_lists() -> None:
    tried = {right for right, _ in attempts(b"key", b"channel")} | BROADCASTS
    scripts = "".join(file.read_text() for file in (Path(aiolocks.__file__).parent / "_redis" / "lua").glob("*/*.lua"))
    called = {name.lower() for name in re.findall(r"redis\.p?call\(\s*'(\w+)'", scripts)}
    called -= {"pubsub", "info"}  # the latter only for `min_uptime`, and else without need
    assert {f"+{name}" for name in called} <= tried
    assert tried == {right for right in documented_rights() if right.startswith("+")}


def test_where_config_is_forbidden_as_on_managed_servers_the_parameter_group_is_named() -> None:
    info = {**MEMORY, "maxmemory_policy": "allkeys-lru", "role": "master", "connected_slaves": 1}
    for check in (_settings.eviction, _settings.replication):
        assert "parameter group" in check(Facts(info)).advice
        assert check(Facts(info, {"save": ""})).advice.startswith("CONFIG SET m")


def test_nodes_of_different_versions_are_a_warning_and_without_a_version_nothing_is_known() -> None:
    def of(version: str) -> Facts:
        return Facts({"redis_version": version})

    assert _settings.versions({"a": of("7.0.15"), "b": of("7.0.15")}).verdict == "ok"
    mixed = _settings.versions({"a": of("7.0.15"), "b": of("7.2.4")})
    assert mixed.verdict == "warning"
    assert "a 7.0.15, b 7.2.4" in mixed.found
    assert _settings.versions({"a": Facts(), "b": of("7.2.4")}).verdict == "unknown"
    assert _settings.server(Facts()).verdict == "unknown"
