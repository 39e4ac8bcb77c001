"""W12: nobody waits for itself, and the head of a semaphore's queue is judged in an order that blocks nobody."""

from collections.abc import Coroutine
from typing import Any

from aiolocks import AcquireTimeoutError, Lock, Semaphore
from tests.scripts.calls import Grant, Scripts
from tests.scripts.states import die, holders, line, listening, sessions
from tests.simulation.planting import always, instead, never
from tests.simulation.rules.scene import Scene
from tests.simulation.rules.table import LOCK, SEMAPHORE, clause


def _outcome(scene: Scene, coroutine: Coroutine[Any, Any, object]) -> str:
    """Return the name of the exception in which *coroutine* ends, within 5 s."""
    outcome = "waits for ever"

    async def go() -> None:
        nonlocal outcome
        try:
            await coroutine
            outcome = "nothing"
        except (RuntimeError, AcquireTimeoutError) as error:
            outcome = type(error).__name__

    program = scene.stage.programs[0]
    program.process.begin(go())
    scene.until(5.0)
    return outcome


@clause("W12", instead("W12-itself", "return False"), kinds=LOCK)
def a_task_that_enters_again_what_it_is_in_is_told_so(scene: Scene) -> None:
    """W12: it would wait for itself, here through another object of the same name."""
    client = scene.program().client

    async def nest() -> None:
        async with Lock(client, "a"), Lock(client, "a").hold(timeout=1):
            pass

    assert _outcome(scene, nest()) == "RuntimeError"


@clause(
    "W12",
    never("W12-permits"),
    kinds=SEMAPHORE,
)
def a_task_that_could_never_have_that_many_more_permits_is_told_so(scene: Scene) -> None:
    """W12: what it holds itself will not come free while it waits."""
    client = scene.program().client

    async def nest() -> None:
        async with Semaphore(client, "a", 3).hold(permits=2), Semaphore(client, "a", 3).hold(permits=2, timeout=1):
            pass

    assert _outcome(scene, nest()) == "RuntimeError"


def _of_four(scripts: Scripts) -> None:
    scripts.resize(4)
    scripts.granted("ann", permits=2)
    scripts.granted("zoe", permits=2)


@clause("W12", instead("W2-dead", "return grants"), kinds=SEMAPHORE)
def a_dead_head_that_wants_many_blocks_nobody(scripts: Scripts) -> None:
    """W12: first of all a dead session is dropped."""
    _of_four(scripts)
    scripts.queued("ben", permits=4, session="away")
    scripts.queued("cat", session="home")
    die(scripts, "away")
    assert [grant.who for grant in scripts.release("ann", permits=2).mine] == ["cat"]


@clause("W12", never("W12-never"), kinds=SEMAPHORE)
def a_head_that_wants_more_than_there_are_is_refused(scripts: Scripts) -> None:
    """W12: next; it could wait for ever, and all others behind it."""
    _of_four(scripts)
    scripts.queued("ben", permits=4)
    scripts.queued("cat")
    assert scripts.resize(3)[1] == [Grant("ben", -1, 3)]
    assert line(scripts) == ["cat"]


@clause(
    "W12",
    instead("W12-later", "if amount == 0 then"),
    kinds=SEMAPHORE,
)
def a_head_that_wants_many_is_not_starved_by_those_who_want_few(scripts: Scripts) -> None:
    """W12: too few free stops."""
    _of_four(scripts)
    scripts.queued("ben", permits=4, session="away")
    scripts.queued("cat")
    with listening(scripts, "away"):
        assert scripts.release("ann", permits=2).mine == []
    assert "cat" not in holders(scripts)


@clause(
    "W12",
    instead("W12-later", "if here or polls or subscribers(head) > 0 then"),
    kinds=SEMAPHORE,
)
def a_head_is_tested_for_reach_only_when_something_is_free(scripts: Scripts) -> None:
    """W12: last; who cannot be reached just now is in nobody's way while nothing is free."""
    _of_four(scripts)
    scripts.queued("ben", session="away")
    scripts.recheck("nobody", session="third")
    assert sessions(scripts) == ["away"]


@clause(
    "W12",
    always("W12-later"),
    kinds=SEMAPHORE,
)
def a_head_that_cannot_be_reached_keeps_nobody_from_what_is_free(scripts: Scripts) -> None:
    """W12: then it is passed over, as one that could have its turn would be."""
    _of_four(scripts)
    scripts.queued("ben", permits=4, session="away")
    scripts.queued("cat", session="home")
    assert [grant.who for grant in scripts.release("ann", permits=2).mine] == ["cat"]
