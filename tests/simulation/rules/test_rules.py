"""ARCHITECTURE.md's rules: each clause is checked, and each check fails when it is switched off."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

import pytest
from redis import Redis

from tests.scripts.calls import Scripts
from tests.simulation.attached import ATTACHED
from tests.simulation.rules import CLAUSES
from tests.simulation.rules.scene import BrokenPromiseError, playing
from tests.simulation.rules.table import Clause
from tests.support.cases import one_in_turns
from tests.support.garden import Garden
from tests.support.replicas import Replicated, replicated
from tests.support.teeth import is_own

# A process that the simulation ends has coroutines destroyed in a loop that is closed.
pytestmark = [pytest.mark.redis, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


@pytest.fixture(scope="module", name="replicated")
def _replicated() -> Iterator[Replicated]:
    with replicated() as servers:
        yield servers


@contextmanager
def _provided(name: str, kind: str, fixture: Callable[[str], Any]) -> Iterator[Any]:
    if name == "scene":
        with playing(kind) as scene:
            yield scene
    elif name == "nodes":
        with playing(kind, nodes=3) as scene:
            yield scene
    elif name == "scripts":
        with Redis.from_url(fixture("server").url) as client:
            client.flushall()
            yield Scripts(client, "lock" if kind == "lock" else "semaphore", limit=1)
    elif name == "replicated":
        servers: Replicated = fixture(name)
        servers.primary.flush()
        servers.catch_up()
        yield servers
    else:
        yield kind


def _run(clause: Clause, request: pytest.FixtureRequest) -> None:
    with ExitStack() as stack:
        names = signature(clause.check).parameters
        clause.check(*(stack.enter_context(_provided(name, clause.kind, request.getfixturevalue)) for name in names))


@pytest.mark.parametrize("clause", one_in_turns(CLAUSES, lambda clause: clause.check), ids=str)
def test_the_rule_holds(clause: Clause, request: pytest.FixtureRequest) -> None:
    _run(clause, request)


@dataclass(frozen=True)
class Tooth:
    """A clause, and one of the defects that its check must find."""

    clause: Clause
    at: int

    def __str__(self) -> str:
        return f"{self.clause} {self.at}"


TEETH = [Tooth(clause, at) for clause in CLAUSES for at in range(len(clause.defects))]


@pytest.mark.parametrize("tooth", one_in_turns(TEETH, lambda tooth: (tooth.clause.check, tooth.at)), ids=str)
def test_its_check_fails_without_it(tooth: Tooth, request: pytest.FixtureRequest) -> None:
    clause = tooth.clause
    with ExitStack() as undo:
        clause.defects[tooth.at](Garden(undo))
        with pytest.raises(AssertionError) as caught:
            _run(clause, request)
    shown = isinstance(caught.value, BrokenPromiseError) or is_own(caught.value, clause.check.__code__.co_filename)
    assert shown, f"what the check needs broke, and not what it shows: {caught.value}"


def test_every_rule_is_in_the_table() -> None:
    assert {clause.rule for clause in CLAUSES} | {name.split()[0] for name in ATTACHED if name[0] == "W"} == {
        *(f"W{number}" for number in (*range(1, 14), 15, 21)),
        *(f"I{number}" for number in range(1, 5)),
    }
