"""W12: nobody waits for itself, and the head of a semaphore's queue is judged in an order that blocks nobody."""

from collections.abc import Coroutine
from typing import Any

from aiolocks import AcquireTimeoutError, Lock, Semaphore
from tests.simulation.planting import instead, never
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
