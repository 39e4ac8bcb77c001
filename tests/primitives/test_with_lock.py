"""`with_lock`: a coroutine function that holds a lock, named by its arguments, while it runs."""

import asyncio
import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pytest
from redis.asyncio import Redis

import aiolocks
from aiolocks import HierarchicalLock, Lock, LockManager, MultiLock, RLock, RWLock, Semaphore, Versioned, with_lock
from tests.support.kinds import complete, kinds_where
from tests.support.primitives import NO_SERVER, Make

pytestmark = pytest.mark.usefixtures("quick_sessions")


@dataclass
class Invoice:
    id: int
    lines: list[str]


async def held(client: Redis, kind: str = "lock") -> set[str]:
    """Return the names that are held."""
    return {
        key.decode().split("{")[1].removesuffix("}")
        async for key in client.scan_iter(f"aiolocks:{kind}:*")
        if key[-1:] == b"}"
    }


async def nothing() -> None: ...


@pytest.mark.parametrize(("template", "name"), [
    ("fixed", "fixed"), ("{a}", "1"), ("{a}:{b}", "1:two"), ("{c}", "three"), ("{a:03}:{b!r}", "001:'two'"),
    ("{rest[0]}", "four"), ("{named[colour]}", "blue"), ("{invoice.id}:{invoice.lines[0]}", "7:book"),
    ("{a:{width}}", "    1"), ("%7Ba%7D", "%257Ba%257D"),
])  # fmt: skip
async def test_while_the_function_runs_a_name_is_held_by_a_template_over_its_arguments(
    client: Redis, template: str, name: str
) -> None:
    @with_lock(client, template)
    async def work(
        a: int, b: str, c: str = "three", *rest: str, invoice: Invoice, width: int = 5, **named: str
    ) -> set[str]:
        return await held(client)

    assert await work(1, "two", "three", "four", invoice=Invoice(7, ["book"]), colour="blue") == {name}
    assert await held(client) == set()


async def test_positional_named_and_default_arguments_make_the_same_name(client: Redis) -> None:
    @with_lock(client, "{shop}:{order}")
    async def pay(shop: str, order: int = 42) -> set[str]:
        return await held(client)

    assert await pay("a") == await pay("a", 42) == await pay(order=42, shop="a") == {"a:42"}


async def test_quoted_texts_with_the_separator_make_a_name_of_their_own_in_with_lock(client: Redis) -> None:
    locked: list[str] = []

    def kind(client: Redis, name: str, **options: Any) -> Lock:
        locked.append(name)
        return Lock(client, name, **options)

    @with_lock(client, "{a!r}:{b!r}", kind=kind)
    async def send(a: str, b: str) -> None: ...

    locked.clear()  # the decoration has tried the template itself
    texts = ["x", "x:y", "x':'y", 'x":"y', "'x'", "x\\", ":", "", "\n"]
    for a in texts:
        for b in texts:
            await send(a, b)
    assert len(set(locked)) == len(texts) ** 2


async def test_a_method_may_name_its_object(client: Redis) -> None:
    class Account:
        def __init__(self, number: int) -> None:
            self.number = number

        @with_lock(client, "account:{self.number}")
        async def close(self) -> set[str]:
            return await held(client)

    assert await Account(7).close() == {"account:7"}


@pytest.mark.parametrize(("kind", "options", "prefix"), [
    *complete({
        "lock": (Lock, {}, "lock"), "rlock": (RLock, {"ttl": 5}, "reentrant"),
        "semaphore": (Semaphore, {"limit": 2, "ttl": 5}, "semaphore"),
    }, kinds_where(lambda kind: kind.leased and not kind.modes), without={
        "multilock": "it takes a list of names; see below", "redlock": "it takes a list of clients",
    }).values(),
    (partial(Semaphore, limit=2), {}, "semaphore"),
])  # fmt: skip
async def test_every_kind_of_primitive_can_be_held(client: Redis, kind: Any, options: Any, prefix: str) -> None:
    @with_lock(client, "a:{number}", kind=kind, **options)
    async def work(number: int) -> set[str]:
        return await held(client, prefix)

    assert await work(1) == {"a:1"}


async def test_a_list_of_templates_becomes_a_list_of_names(client: Redis) -> None:
    asked: list[object] = []

    def several(client: Redis, names: list[str], **options: Any) -> Lock:
        asked.append(names)
        return Lock(client, "+".join(names), **options)

    @with_lock(client, ["from:{a}", "to:{b}"], kind=several)
    async def move(a: int, b: int) -> None: ...

    await move(1, 2)
    assert asked[-1] == ["from:1", "to:2"]


async def test_a_managers_defaults_count_and_options_override_them(make: Make) -> None:
    locks = LockManager(make.client, acquire_timeout=0, prefix="app:")

    @with_lock(locks, "a", ttl=5)
    async def work() -> list[bytes]:
        with pytest.raises(aiolocks.AcquireTimeoutError):
            await asyncio.create_task(again())
        return [key async for key in make.client.scan_iter("app:*")]

    @with_lock(locks, "a", prefix="app:")
    async def again() -> None:
        pytest.fail("the body ran")

    assert b"app:lock:{a}" in await work()
    await make.client.flushdb()


async def test_the_client_may_come_later(client: Redis) -> None:
    made: list[Redis | LockManager] = []

    @with_lock(lambda: made[0], "a")
    async def work() -> set[str]:
        return await held(client)

    for later in (client, LockManager(client)):
        made[:] = [later]
        assert await work() == {"a"}


async def test_wrong_arguments_are_the_functions_own_type_error_and_nothing_is_asked() -> None:
    @with_lock(NO_SERVER, "{a}")
    async def work(a: int) -> None: ...

    wrong: Any = work
    with pytest.raises(TypeError):
        await wrong()
    with pytest.raises(TypeError):
        await wrong(1, b=2)


async def test_the_function_keeps_its_name_its_docstring_and_its_signature() -> None:
    @with_lock(NO_SERVER, "{a}")
    async def work(a: int, *, b: str = "") -> float:
        """Work."""
        return 0.5

    assert (work.__name__, work.__doc__) == ("work", "Work.")
    assert str(inspect.signature(work)) == "(a: int, *, b: str = '') -> float"
    assert inspect.iscoroutinefunction(work)


@pytest.mark.parametrize("template", [
    "{", "}", "{}", "{0}", "{a", "{c}", "{c.d}", "{c[0]}", "{a!x}", "{a.}", "{a[}", "{a[]}", "{a:{c}}", "{a b}", "{ a}",
])  # fmt: skip
async def test_a_bad_template_is_an_error_at_decoration(template: str) -> None:
    async def work(a: int, b: int = 0) -> None: ...

    with pytest.raises(ValueError):
        with_lock(lambda: NO_SERVER, template)(work)


async def test_a_template_of_what_is_no_parameter_is_told_which_there_are() -> None:
    async def work(a: int, b: int = 0) -> None: ...

    for function, has in [(work, "a, b"), (nothing, "none")]:
        anyhow: Any = function
        with pytest.raises(ValueError, match=rf"'\{{c\}}' names 'c', which is no parameter of .*; it has: {has}$"):
            with_lock(lambda: NO_SERVER, "{c}")(anyhow)


async def test_a_bad_or_unknown_option_is_an_error_at_decoration_that_says_what_to_use() -> None:
    anyhow: Any = with_lock
    for options, error, says in (
        ({"ttl": 0}, ValueError, "ttl"),
        ({"kind": Semaphore}, TypeError, "limit"),
        ({"tll": 5}, TypeError, r"Lock has no 'tll'; its options are ttl, acquire_timeout"),
        ({"timeout": 5}, TypeError, "use ttl="),
    ):
        for client in (NO_SERVER, LockManager(NO_SERVER)):
            with pytest.raises(error, match=says):
                anyhow(client, "a", **options)(nothing)


async def test_what_is_no_coroutine_function_is_a_type_error_at_decoration() -> None:
    def plain() -> None: ...

    async def generator() -> Any:
        yield 1

    for wrong in (plain, generator, 5):
        function: Any = wrong
        with pytest.raises(TypeError, match="coroutine function"):
            with_lock(NO_SERVER, "a")(function)


async def test_a_lock_with_modes_is_held_in_the_mode_that_kind_names(client: Redis) -> None:
    @with_lock(client, "a", kind=lambda client, name, **options: RWLock(client, name, **options).read, ttl=5)
    async def work() -> tuple[bool, bool]:
        rw = RWLock(client, "a")
        return await rw.read.locked(), await rw.write.locked()

    assert await work() == (False, True)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(("kind", "says"), [
    *complete({
        "rwlock": (RWLock, r"kind=lambda client, name, \*\*options: RWLock\(client, name, \*\*options\)\.read"),
        "hierarchy": (HierarchicalLock, r"kind=lambda .*: HierarchicalLock\(client, name, \*\*options\)\.read"),
        "versioned": (Versioned, r"call its update\(\)"),
    }, kinds_where(lambda kind: bool(kind.modes) or not kind.leased)).values(),
    (int, "`async with` can enter, not int"),
    ("semaphore", "kind must be a primitive, such as Lock or Semaphore, .* not 'semaphore'"),
])  # fmt: skip
async def test_a_kind_that_cannot_be_entered_is_an_error_at_decoration_that_says_what_to_do(
    kind: Any, says: str, later: bool
) -> None:
    with pytest.raises(TypeError, match=says):
        with_lock((lambda: NO_SERVER) if later else NO_SERVER, "a", kind=kind)(nothing)


async def test_a_kind_that_makes_what_cannot_be_entered_is_an_error_at_decoration() -> None:
    for client in (NO_SERVER, LockManager(NO_SERVER)):
        with pytest.raises(TypeError, match=r"\.read"):
            with_lock(client, "a", kind=cast("Any", partial(RWLock, ttl=5)))(nothing)


async def test_a_name_that_is_no_template_is_an_error_at_decoration_that_says_so() -> None:
    async def work(a: int) -> None: ...

    for wrong in (42, None, b"a", NO_SERVER):
        with pytest.raises(TypeError, match=r"name must be a template, .* not " + type(wrong).__name__):
            with_lock(NO_SERVER, cast("str", wrong))
    with pytest.raises(TypeError, match="not int"):
        with_lock(NO_SERVER, cast("str", [42]))(work)
    with pytest.raises(TypeError, match=r"several, such as \['from:\{a\}'\]"):
        with_lock(NO_SERVER, "from:{a}", kind=MultiLock)(work)


async def test_the_class_of_a_client_is_an_error_at_decoration() -> None:
    """Called as a function, it would make a client for each call."""
    with pytest.raises(TypeError, match="not the class"):
        with_lock(Redis, "a")
