"""DESIGN.md's rules W1 to W13, W15, W21: each clause is checked, and each check fails when it is switched off."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any

import pytest
from redis import Redis

from tests.scripts.calls import Scripts
from tests.simulation.rules import CLAUSES
from tests.simulation.rules.scene import playing
from tests.simulation.rules.table import Clause
from tests.support.garden import Garden
from tests.support.replicas import Replicated, replicated

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


@pytest.mark.parametrize("clause", CLAUSES, ids=str)
def test_the_rule_holds(clause: Clause, request: pytest.FixtureRequest) -> None:
    _run(clause, request)


TEETH = [pytest.param(clause, at, id=f"{clause} {at}") for clause in CLAUSES for at in range(len(clause.defects))]


@pytest.mark.parametrize(("clause", "defect"), TEETH)
def test_its_check_fails_without_it(clause: Clause, defect: int, request: pytest.FixtureRequest) -> None:
    with ExitStack() as undo:
        clause.defects[defect](Garden(undo), clause.kind)
        with pytest.raises(AssertionError):
            _run(clause, request)


def test_every_rule_is_in_the_table() -> None:
    assert {clause.rule for clause in CLAUSES} == {f"W{number}" for number in (*range(1, 14), 15, 21)}
