"""The nightly command runs what it is told to, goes on after a failure, and says so by its exit status."""

import shutil
from pathlib import Path

import pytest

from tests.nightly import Part, chosen, run

Capsys = pytest.CaptureFixture[str]


def part(name: str, code: str) -> Part:
    return Part(name, "something", ("-c", code), {"AIOLOCKS_SLACK": "1"})


def test_every_part_runs_and_a_failed_one_is_counted(capfd: Capsys) -> None:
    ok = part("good", "import os; print('slack', os.environ['AIOLOCKS_SLACK'])")
    assert run([part("bad", "raise SystemExit(3)"), ok]) == 1
    said = capfd.readouterr().out
    assert "slack 1" in said
    table = [line.split()[:2] for line in said.splitlines()[-2:]]
    assert table == [["bad", "FAILED"], ["good", "passed"]]


def test_a_part_without_its_server_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capsys) -> None:
    for tool in ("bash", "env", "mkdir", "timeout"):  # and no apt-get: a machine without Debian's packages
        path = shutil.which(tool)
        assert path is not None
        (tmp_path / tool).symlink_to(path)
    monkeypatch.setenv("PATH", str(tmp_path))
    newer = Part("newer", "something", ("-c", "raise SystemExit(1)"), server=("sid", "valkey-server"))
    assert run([newer]) == 0
    captured = capfd.readouterr()
    assert captured.err == "valkey-server of Debian sid cannot be had: no apt-get here\n"
    assert captured.out.splitlines()[-1].split()[:2] == ["newer", "SKIPPED"]


def test_the_parts_that_are_named_are_chosen_or_all_and_seconds_are_shared_among_the_seeds(capsys: Capsys) -> None:
    parts = chosen(["faults-redis-trixie", "faults-valkey-sid"])
    assert [part.server for part in parts] == [("trixie", "redis-server"), ("sid", "valkey-server")]
    names = [part.name for part in chosen([])]
    assert [name for name in names if "-" not in name][:4] == ["mix", "faults", "fleets", "long"]
    assert "soak" not in names, "it takes hours"
    assert chosen(["soak", "--hours=2"])[0].command[2:] == ("--seeds=1", "--seconds=7200", "--spare=3")
    with pytest.raises(SystemExit):
        chosen(["mixture"])
    assert "mix, mix-sentinel, mix-cluster, soak, faults, faults-redis-6.2" in capsys.readouterr().err
    assert chosen(["mix"])[0].command[2:] == ("--seeds=5", "--seconds=120")
    of_two = chosen(["mix", "--seconds=60", "--seed=7", "--seed=8"])[0]
    assert of_two.command[2:] == ("--seed=7", "--seed=8", "--seconds=30")
