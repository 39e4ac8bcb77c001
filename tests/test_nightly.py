"""The nightly command runs what it is told to, goes on after a failure, and says so by its exit status."""

import pytest

from tests.nightly import Part, chosen, run


def part(name: str, code: str) -> Part:
    return Part(name, "something", ("-c", code), {"AIOLOCKS_SLACK": "1"})


def test_every_part_runs_and_a_failed_one_is_counted(capfd: pytest.CaptureFixture[str]) -> None:
    ok = part("good", "import os; print('slack', os.environ['AIOLOCKS_SLACK'])")
    assert run([part("bad", "raise SystemExit(3)"), ok]) == 1
    said = capfd.readouterr().out
    assert "slack 1" in said
    table = [line.split()[:2] for line in said.splitlines()[-2:]]
    assert table == [["bad", "FAILED"], ["good", "passed"]]


def test_an_unknown_part_is_a_mistake_that_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        chosen(["mixture"])
    assert "mix, faults, fleets, simulation" in capsys.readouterr().err


def test_seconds_are_shared_among_the_seeds() -> None:
    assert chosen(["mix"])[0].command[2:] == ("--seeds=5", "--seconds=120")
    assert chosen(["mix", "--seconds=60", "--seed=7", "--seed=8"])[0].command[2:] == (
        "--seed=7",
        "--seed=8",
        "--seconds=30",
    )


def test_all_parts_run_if_none_is_named() -> None:
    assert [part.name for part in chosen([])][:4] == ["mix", "faults", "fleets", "simulation"]
