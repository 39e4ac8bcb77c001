"""aiolocks.fastapi: the name of a lock is made of what FastAPI itself validated, so that one resource has one name."""

from collections.abc import AsyncIterator
from datetime import time
from decimal import Decimal
from enum import Enum
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote
from uuid import UUID

import httpx
import pytest
import pytest_asyncio
from aiohttp import web
from fastapi import APIRouter, Depends, FastAPI, Path, Query
from pydantic import AfterValidator, Field, StringConstraints
from starlette.convertors import StringConvertor, register_url_convertor

import aiolocks.aiohttp
from aiolocks import Lease, LockManager
from aiolocks.aiohttp import LOCKS
from aiolocks.fastapi import app_locks, locked
from tests.support.web import in_aiohttp

if TYPE_CHECKING:
    from fastapi.responses import Response as Unimportable

pytestmark = pytest.mark.asyncio

Name = Annotated[Lease, locked("orders:{order_id}")]

CANONICAL = "7e0b8b0e-0c2f-4f7b-9a3c-1f2e3d4c5b6a"

Size = Enum("Size", {"SMALL": "s", "BIG": "b"})
Word = Enum("Word", {"SMALL": "s"}, type=str)  # `format` makes "Word.SMALL" of its member
register_url_convertor("word", type("Words", (StringConvertor,), {"convert": Word})())


@pytest_asyncio.fixture
async def memory() -> AsyncIterator[LockManager]:
    async with LockManager.from_url("memory://") as locks:
        yield locks


def app_with(memory: LockManager, **options: Any) -> FastAPI:
    app = FastAPI(**options)
    app.state.locks = memory
    return app


def route(app: FastAPI | APIRouter, path: str, lock: Any = Name, *, before: Any = (), **declared: Any) -> None:
    """Answer *path* with the name of the lock that is held, by an endpoint that declares these parameters."""

    async def endpoint(lease: Lease, **_: object) -> str:
        return lease.name

    parameters = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=of) for name, of in declared.items()]
    lease = Parameter("lease", Parameter.KEYWORD_ONLY, annotation=lock)
    endpoint.__signature__ = Signature([*parameters, lease])  # type: ignore[attr-defined]
    app.post(path, dependencies=before)(endpoint)


def declaring(memory: LockManager, declared: Any, beside: Any = None) -> FastAPI:
    """Return an application whose ``POST /orders/{order_id}`` takes it as *declared*, and a dependency as *beside*."""

    async def load(order_id: beside) -> None: ...

    app = app_with(memory, dependencies=[Depends(load)] if beside else [])
    route(app, "/orders/{order_id}", order_id=declared)
    return app


async def post(app: Any, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        return await client.post(path)


async def names(app: Any, *paths: str) -> set[object]:
    found = set()
    for path in paths:
        answer = await post(app, path)
        assert answer.status_code == 200, answer.text
        found.add(answer.json())
    return found


@pytest.fixture(
    params=["endpoint", "dependency", "nested", "decorator", "router", "include", "application", "override"]
)
def app(request: pytest.FixtureRequest, memory: LockManager) -> FastAPI:
    """An application whose ``POST /orders/{order_id}`` declares the parameter in one of the places that there are."""
    where = request.param

    async def load(order_id: int) -> int:
        return order_id

    async def check(order: Annotated[int, Depends(load)]) -> None: ...

    declared: dict[str, dict[str, Any]] = {
        "endpoint": {"order_id": int},
        "dependency": {"order": Annotated[int, Depends(load)]},
        "nested": {"order": Annotated[None, Depends(check)]},
    }

    def loads(*places: str) -> list[Any]:
        return [Depends(load)] if where in places else []

    app = app_with(memory, dependencies=loads("application"))
    router = APIRouter(dependencies=loads("router"))
    route(router, "/orders/{order_id}", before=loads("decorator", "override"), **declared.get(where, {}))
    app.include_router(router, dependencies=loads("include"))
    if where == "override":
        app.dependency_overrides[load] = lambda: 1
    return app


async def test_one_order_has_one_name_wherever_its_number_is_declared(app: FastAPI) -> None:
    assert await names(app, "/orders/7", "/orders/007", "/orders/+7", "/orders/%207") == {"orders:7"}
    lease = await app.state.locks.lock("orders:7").acquire()
    assert (await post(app, "/orders/007")).status_code == 423
    await lease.release()


async def test_what_is_invalid_is_answered_as_fastapi_does_and_asks_nothing(app: FastAPI) -> None:
    plain = FastAPI()

    @plain.post("/orders/{order_id}")
    async def endpoint(order_id: int) -> None: ...

    refused = await post(app, "/orders/seven")
    assert refused.status_code == 422
    assert refused.json()["detail"][0] == (await post(plain, "/orders/seven")).json()["detail"][0]
    assert not await app.state.locks.client.keys("*seven*")


@pytest.mark.parametrize(("declared", "paths", "name"), [
    (Annotated[int, Path(gt=0)], ["7", "007"], "7"),
    (UUID, [CANONICAL, CANONICAL.upper(), CANONICAL.replace("-", ""), f"urn:uuid:{CANONICAL}"], CANONICAL),
    (Size, ["s"], "s"), (Word, ["s"], "s"),
    (Annotated[str, StringConstraints(to_lower=True, strip_whitespace=True)], ["AbC", "abc", "%20abc"], "abc"),
    (Annotated[str, AfterValidator(lambda text: text.lstrip("0"))], ["007", "7"], "7"),
    (Decimal, ["100", "100.0", "1e2"], "100"), (bool, ["1", "true", "yes"], "True"),
    (Decimal, ["0", "-0", "0.00", "-0e5", "0e-1000000", "-0e1000000"], "0"),
    (Decimal, ["1e1000000", "10e999999", "0.1e1000001"], "1E+1000000"),
    (Decimal, ["-1e-1000000", "-1.00e-1000000"], "-1E-1000000"),
    (Annotated[Decimal, Field(allow_inf_nan=True)], ["Infinity", "+inf", "inf"], "Infinity"),
    (float, ["7", "7.0"], "7.0"), (float, ["0", "-0", "0.0", "-0.0"], "0.0"),
    (float, ["inf", "Infinity", "1e999"], "inf"), (int | float, ["10", "10.0", "1e1", "010"], "10"),
    (int | bool, ["1", "true", "01"], "1"), (int | Decimal, ["10", "1e1", "10.0"], "10"),
    (Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0)], ["10", "1e1"], "10"),
    (time, ["10:00:00Z", "12:00:00%2B02:00"], "10:00:00Z"), (int | str, ["seven"], "seven"), (str, ["007"], "007"),
], ids=lambda value: value if isinstance(value, str) else None)  # fmt: skip
async def test_all_spellings_give_one_name(memory: LockManager, declared: Any, paths: list[str], name: str) -> None:
    app = declaring(memory, declared)
    assert await names(app, *(f"/orders/{path}" for path in paths)) == {f"orders:{name}"}


@pytest.mark.parametrize(("declared", "paths"), [
    (Decimal, [f"0.{'1' * 40}{last}" for last in "123"]), (Decimal, [f"{'9' * 40}{last}" for last in "012"]),
    (Decimal, ["1e1000000", "-1e1000000", "1e1000001", "1.1e1000000", "1e-1000000"]),
    (float, ["inf", "-inf", "nan", "0", "5e-324", "-5e-324"]), (int, ["9007199254740992", "9007199254740993"]),
    (int | float, ["9007199254740992", "9007199254740993", "0.5", "inf"]),
    (Annotated[Decimal, Field(allow_inf_nan=True)], ["inf", "-inf", "nan", "0"]),
])  # fmt: skip
async def test_distinct_values_have_names_of_their_own(memory: LockManager, declared: Any, paths: list[str]) -> None:
    app = declaring(memory, declared)
    assert len(await names(app, *(f"/orders/{path}" for path in paths))) == len(paths)


@pytest.mark.parametrize("path", ["1" * 1017 + ".5", "1" * 1018, "0." + "1" * 2000])
async def test_a_number_whose_digits_do_not_fit_a_name_is_the_clients_mistake(memory: LockManager, path: str) -> None:
    answer = await post(declaring(memory, Decimal), f"/orders/{path}")
    assert answer.status_code == 422
    assert "1,024" in answer.json()["detail"][0]["msg"] or "1024" in answer.json()["detail"][0]["msg"]


async def test_an_alias_names_the_parameter_of_the_path_and_not_that_of_a_query(memory: LockManager) -> None:
    app = app_with(memory)

    async def load(number: Annotated[int, Path(alias="order_id")]) -> int:
        return number

    route(app, "/orders/{order_id}", number=Annotated[int, Path(alias="order_id")])
    route(app, "/loaded/{order_id}", order=Annotated[int, Depends(load)])
    route(app, "/asked/{order_id}", order_id=str, other=Annotated[int, Query(alias="order_id")])
    assert await names(app, "/orders/7", "/orders/007", "/loaded/7", "/loaded/007") == {"orders:7"}
    assert await names(app, "/asked/x7?order_id=1") == {"orders:x7"}


async def test_convertors_of_the_path_need_no_declaration_and_go_together_with_one(memory: LockManager) -> None:
    app = app_with(memory)
    for path, template in [
        ("/numbers/{n:int}", "{n}"), ("/files/{p:path}", "{p}"), ("/ids/{u:uuid}", "{u}"), ("/plain/{s}", "{s}"),
        ("/words/{w:word}", "{w}"), ("/quoted/{w:word}", "{w!r}"),
    ]:  # fmt: skip
        route(app, path, Annotated[Lease, locked(template)])
    route(app, "/small/{n:int}", Annotated[Lease, locked("{n}")], n=Annotated[int, Path(lt=10)])
    assert await names(app, "/numbers/7", "/numbers/007", "/small/7", "/small/007") == {"7"}
    assert await names(app, "/files/a/b.txt") == {"a/b.txt"}
    assert await names(app, f"/ids/{CANONICAL}") == {CANONICAL}
    assert await names(app, "/plain/007", "/words/s", "/quoted/s") == {"007", "s", "'s'"}
    for invalid in ("/small/70", "/files/"):
        assert (await post(app, invalid)).status_code == 422


async def test_annotations_that_only_type_checkers_can_read_do_no_harm(memory: LockManager) -> None:
    app = app_with(memory)

    async def endpoint(order_id: int, lease: Name) -> "Unimportable":
        return lease.name  # type: ignore[return-value]

    app.post("/orders/{order_id}", response_model=None)(endpoint)
    assert await names(app, "/orders/7", "/orders/007") == {"orders:7"}


@pytest.mark.parametrize(("beside", "declared", "paths", "name"), [
    (str, int, ["7", "007"], "7"), (int, str, ["7", "007"], "7"),
    (Annotated[str, Path(max_length=9)], int, ["7", "007"], "7"),
    (Annotated[str, Path(max_length=9)], Annotated[str, StringConstraints(to_lower=True)], ["ABC", "abc"], "abc"),
])  # fmt: skip
async def test_what_one_of_two_declarations_makes_of_a_text_goes_before_the_text(
    memory: LockManager, beside: Any, declared: Any, paths: list[str], name: str
) -> None:
    app = declaring(memory, declared, beside)
    assert await names(app, *(f"/orders/{path}" for path in paths)) == {f"orders:{name}"}


async def test_quoted_texts_with_the_separator_make_a_name_of_their_own_in_a_web_name(memory: LockManager) -> None:
    app = app_with(memory)
    route(app, "/{a}/{b}", Annotated[Lease, locked("{a!r}:{b!r}")], a=str, b=str)
    assert len(await names(app, "/x:y/z", "/x/y:z", "/x':'y/z", "/x/y':'z")) == 4


async def test_one_text_has_one_name_in_whatever_form_of_unicode_it_comes(memory: LockManager) -> None:
    """Keyboards, file systems and databases make different forms of it; they look the same."""
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    by_template, own = Annotated[Lease, locked("cafes:{name!a}")], lambda name: name
    app, inner = app_with(memory), web.Application()
    inner[LOCKS] = memory

    @aiolocks.aiohttp.locked("cafes:{name!a}")
    async def handler(request: web.Request, lease: Lease) -> web.Response:
        return web.json_response(lease.name)

    route(app, "/cafes/{name}", by_template, name=str)
    route(app, "/undeclared/{name}", by_template)
    own.__annotations__["name"] = str
    route(app, "/own/{name}", Annotated[Lease, locked(own)])
    inner.router.add_post("/cafes/{name}", handler)
    places = [f"/{place}/{quote(name)}" for place in ("cafes", "undeclared") for name in (composed, decomposed)]
    assert await names(app, *places) == {f"cafes:{composed!a}"}
    assert await names(app, f"/own/{quote(decomposed)}") == {decomposed}
    async with in_aiohttp(inner) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert {(await client.post(place)).json() for place in places[:2]} == {f"cafes:{composed!a}"}


async def test_two_declarations_that_disagree_are_an_error_and_not_two_names(memory: LockManager) -> None:
    app = declaring(memory, int, beside=float)
    with pytest.raises(
        RuntimeError, match=r"'order_id' of the path is declared in several ways, which turn one value into .* and"
    ):
        await post(app, "/orders/7")


async def test_prefixes_and_mounts_have_parameters_too(memory: LockManager) -> None:
    inner, outer = APIRouter(prefix="/orders"), APIRouter(prefix="/shops/{shop}")
    route(inner, "/{order_id}", Annotated[Lease, locked("{shop}:{order_id}")], shop=int, order_id=int)
    outer.include_router(inner)
    app = app_with(memory)
    app.include_router(outer)
    app.include_router(inner, prefix="/again/{shop}")
    mounted = app_with(memory)
    mounted.include_router(inner, prefix="/of/{shop}")
    app.mount("/mounted/{tenant}", mounted)
    paths = [f"/shops/{shop}/orders/{order}" for shop in ("3", "03") for order in ("7", "07")]
    paths += ["/again/3/orders/7", "/again/03/orders/007", "/mounted/x/of/03/orders/007"]
    assert await names(app, *paths) == {"3:7"}
    route(mounted, "/opened", Annotated[Lease, locked("{tenant}")], tenant=int)
    assert await names(app, "/mounted/7/opened?tenant=1", "/mounted/007/opened?tenant=1") == {"7"}


async def test_a_mounted_application_without_a_manager_says_that_it_needs_its_own(memory: LockManager) -> None:
    app, mounted = app_with(memory), FastAPI()

    route(mounted, "/orders/{order_id}", order_id=int)
    app.mount("/shop", mounted)
    with pytest.raises(RuntimeError, match="a mounted application has its own state"):
        await post(app, "/shop/orders/7")
    mounted.dependency_overrides[app_locks] = lambda: memory
    assert await names(app, "/shop/orders/007") == {"orders:7"}


async def test_all_that_is_invalid_is_named_at_once(memory: LockManager) -> None:
    app = app_with(memory)
    name = Annotated[Lease, locked("{shop}:{order_id}")]
    route(app, "/shops/{shop}/orders/{order_id}", name, shop=int, order_id=int)
    detail = (await post(app, "/shops/a/orders/b")).json()["detail"]
    assert [error["loc"] for error in detail[:2]] == [["path", "shop"], ["path", "order_id"]]
