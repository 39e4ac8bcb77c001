"""A FastAPI dependency that holds a lock around an endpoint and answers "busy" in terms of HTTP.

The one rule: the response is sent after the release, so a request whose lease was lost never gets a success.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, time
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Annotated, Any, Literal, NoReturn, Unpack, cast, final, get_args, get_origin

from . import Lease, LockManager
from ._core.keys import MAX_NAME_BYTES
from ._core.options import Duration, TrackedOptions
from ._web import (
    LOST,
    RESTART,
    STATUSES,
    TRY_LATER,
    Answers,
    Plan,
    Status,
    check_callables,
    check_known,
    fields_of,
    name_from,
    releases,
    retry_header,
)
from ._web_background import Leads, check_background, in_background

try:
    from fastapi import Depends, FastAPI, HTTPException, WebSocket, WebSocketException, params
    from fastapi.dependencies.models import Dependant
    from fastapi.dependencies.utils import request_params_to_args
    from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
    from starlette import exceptions
    from starlette.requests import HTTPConnection
    from starlette.websockets import WebSocketState
except ImportError as missing:
    raise ImportError("aiolocks.fastapi needs the extra 'fastapi' of aiolocks") from missing

__all__ = ["app_locks", "lifespan", "locked", "responses"]


def lifespan(
    url: str,
    *,
    inner: Callable[[FastAPI], AbstractAsyncContextManager[Mapping[str, Any] | None]] | None = None,
    background: Leads | None = None,
    holder: str | None = None,
    **options: Unpack[TrackedOptions],
) -> Callable[[FastAPI], AbstractAsyncContextManager[Mapping[str, Any]]]:
    """Return a lifespan that keeps a manager in `app.state.locks`, which `locked` uses::

        app = FastAPI(lifespan=aiolocks.fastapi.lifespan("redis://localhost", ttl=10))

    Args:
        url, holder, options: The same as for `LockManager.from_url`.
        inner: The application's own lifespan, which runs while the manager is open. Its value becomes the state of the
            lifespan.
        background: Coroutine functions that one worker of the fleet runs at a time, each under the name of an
            `Election`: ``{"scheduler": lead}``. They begin before *inner* and end after it. A function whose worker
            ends, or that raises, is run by the next worker.

    Raises:
        TypeError: *background* is not a mapping of names to functions.
        ValueError: A wrong name in *background*. When the application starts: an unknown kind of URL, or an option out
            of range.

    An exception of a function in *background* is one ERROR in the log. Its worker stands again after 1 s, and after up
    to a TTL if it fails again and again. If it returns, its worker stands no more. At shutdown it is cancelled and its
    lease released, as by `Election.resign`. The shutdown waits a TTL at most for a function that does not end.

    The application starts without asking Redis. While Redis is down, its requests are answered with 503. At the end,
    requests that the server cancelled get a second to release their locks. The manager is also closed when *inner* or
    the start of the application fails or is cancelled. A mounted application has no lifespan, so give `locked` a
    dependency that returns the manager.
    """

    leads = check_background(background)

    @asynccontextmanager
    async def keep(app: FastAPI) -> AsyncGenerator[Mapping[str, Any]]:
        async with LockManager.from_url(url, holder=holder, **options) as manager:
            app.state.locks = manager
            try:
                async with in_background(manager, leads), nullcontext() if inner is None else inner(app) as state:
                    yield cast("Mapping[str, Any]", state)  # None is allowed, but FastAPI's type does not say so
            finally:
                del app.state.locks  # so that a late request fails, instead of opening a connection
                await releases(manager)

    return keep


def responses(status: Status = 423) -> dict[int | str, dict[str, Any]]:
    """Return the answers of `locked` for OpenAPI: *status* and 503, each with its ``Retry-After``::

        @app.post("/orders/{order_id}/pay", responses=responses(409))

    FastAPI cannot learn this from a dependency. An `APIRouter` and an application take the same argument.

    Raises:
        ValueError: A status that `locked` does not have.
    """
    if status not in STATUSES:
        raise ValueError(f"status must be 423, 409, 429 or 503, not {status!r}")
    texts: dict[int, str] = {503: "The lock could not be asked for, or was lost"}
    busy = "Another request holds the lock"
    texts[int(status)] = f"{busy}; or: {texts[503][0].lower()}{texts[503][1:]}" if status == 503 else busy
    return {code: _described(text) for code, text in sorted(texts.items())}


def _described(text: str) -> dict[str, Any]:
    body = {"type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"]}
    wait = {"description": "Seconds after which to ask again", "schema": {"type": "integer", "minimum": 0}}
    return {"description": text, "headers": {"Retry-After": wait}, "content": {"application/json": {"schema": body}}}


async def app_locks(connection: HTTPConnection) -> LockManager:
    """Return the manager kept in `app.state.locks`; tests may override this dependency."""
    try:
        manager: LockManager = connection.app.state.locks
    except AttributeError:
        raise RuntimeError(
            "app.state.locks is missing: put a LockManager there, as `aiolocks.fastapi.lifespan` does (a mounted "
            "application has its own state), or pass locks= to locked()"
        ) from None
    return manager


def locked(
    name: str | Callable[..., str | Awaitable[str]],
    *,
    limit: int | None = None,
    timeout: Duration | None = 0.0,
    status: Status = 423,
    retry_after: Duration | None = None,
    detail: str | None = None,
    locks: Callable[..., LockManager | Awaitable[LockManager]] = app_locks,
    scope: Literal["function", "request"] = "function",
    **options: Unpack[TrackedOptions],
) -> params.Depends:
    """Return a dependency that holds a lock while the endpoint runs; its value is the lease::

        @app.post("/orders/{order_id}/pay")
        async def pay(order_id: int, lease: Annotated[Lease, locked("orders:{order_id}", timeout=2)]): ...

    Endpoints may serve HTTP or a WebSocket. Several locks of one endpoint are acquired in the order of its parameters.

    Args:
        name: What to lock. Either a dependency that returns the name, or a template over the parameters of the path.
            Their values are validated by FastAPI, so ``/orders/7`` and ``/orders/007`` are one order. Quote texts that
            may contain the separator, as in ``{a!r}:{b!r}``. Without quotes, two resources can share a name. A template
            puts texts into Unicode's form NFC, since a client may send one text in another form. A name that a
            dependency returns is used as it is.
        limit: Hold one permit of a semaphore with this limit, instead of a lock.
        timeout: Seconds to wait before the answer is "busy". 0 asks once. None waits for ever. With
            ``max_waiting=20`` among the options, a request that finds 20 waiting gets this answer at once.
        status: Status of the answer "busy": 409, 423, 429 or 503.
        retry_after: Seconds after which the client may ask again, sent as ``Retry-After`` in whole seconds. None sends
            the error's own `retry_after`, at least 1: the time until the current lease ends if its holder has died. If
            that is unknown, no header is sent.
        detail: Text of the answer "busy". None means the default text of the status.
        locks: A dependency that returns the manager, whose defaults apply. For a WebSocket it must take an
            `HTTPConnection`, not a `Request`.
        scope: When to release. "function" releases before the response is sent. "request" releases after the response
            and its background tasks, as an endpoint that streams needs. A loss then cuts the response off, because it
            is too late for a status. Starlette's BaseHTTPMiddleware, which `app.middleware("http")` makes, ends every
            chunked body as if it were complete, so declare a Content-Length, or end the stream with an end mark.
        options: Options of the lease, which override the manager's. See `Lock`. With ``on_lost="flag"`` the endpoint's
            answer is sent even after a loss.

    Raises:
        TypeError: A wrong type, or an unknown option.
        ValueError: A value out of range, or a template whose fields are not plain names.
        RuntimeError: At a request: `app.state.locks` is missing, the path lacks a field of the template, or a parameter
            is declared in several ways, which make different names of one value.

    A request fails with *status* when the lock is busy, with 503 when Redis could not be asked or the endpoint or its
    lock raised `LeaseLostError`, and with 422 when its values make a name that is empty or longer than 1,024 bytes. A
    WebSocket is refused with the same status, or with 403 if the server supports no other refusal. An accepted
    WebSocket is closed with 1012 on a loss.

    After a loss, an answer below 400 becomes 503, whether the endpoint returns it or raises it as `HTTPException`. A
    `WebSocketException` with code 1000 becomes 1012. Any other exception of the endpoint, except `LeaseLostError`, is
    raised as it is. Do not let an exception handler turn it into a success.

    When the lease is lost, an `async def` endpoint is cancelled at its next await. A `def` endpoint runs in a thread,
    which cannot be stopped; its answer is 503, but let it call `lease.check()` before it writes. The server does not
    stop an endpoint whose client has gone: the lock is held until the endpoint ends.
    """
    check_callables(name, locks, "a dependency")
    if scope not in ("function", "request"):
        raise ValueError(f'scope must be "function" or "request", not {scope!r}')
    plan = Plan(
        "app.state.locks",
        limit=limit,
        timeout=timeout,
        status=status,
        retry_after=retry_after,
        detail=detail,
        options=options,
    )
    name_of = _from_path(name) if isinstance(name, str) else name

    async def hold(
        connection: HTTPConnection,
        manager: Annotated[LockManager, Depends(locks)],
        text: Annotated[str, Depends(name_of)],
    ) -> AsyncIterator[Lease]:
        async with plan.hold(manager, text, _Answers(connection)) as lease:
            yield lease

    return _Locked(hold, scope=scope)


class _Locked(params.Depends):
    """A dependency that explains the mistake when it is used as a decorator or wrapped in `Depends()`."""

    def __call__(self, *_: object) -> NoReturn:
        raise TypeError(_PLACE)

    @property
    def __signature__(self) -> NoReturn:  # FastAPI reads it of the argument of `Depends(…)`
        raise TypeError(_PLACE)


_PLACE = (
    "locked() is a dependency, not a decorator: write lease: Annotated[Lease, locked(...)] as a parameter of the "
    "endpoint, or dependencies=[locked(...)], without Depends()"
)


_MAX_REASON = 123
"""Maximum number of bytes in the reason of a close frame (RFC 6455)."""

_NORMAL_CLOSURE = 1000
"""Close code of a WebSocket that has done its work (RFC 6455)."""


@final
class _Answers(Answers):
    def __init__(self, connection: HTTPConnection) -> None:
        self._connection = connection

    def refusal(self, status: int, retry_after: int | None, detail: str | None) -> Exception:
        if isinstance(self._connection, WebSocket) and not _may_deny(self._connection):
            return WebSocketException(TRY_LATER, (detail or "").encode()[:_MAX_REASON].decode(errors="ignore"))
        return HTTPException(status, detail, retry_header(retry_after))

    def invalid(self, name: str, why: str) -> Exception:
        return _invalid(self._connection, [{"type": "value_error", "loc": ("path",), "msg": why, "input": name}])

    def loss(self, retry_after: int | None) -> Exception | None:
        if isinstance(self._connection, WebSocket):
            if WebSocketState.DISCONNECTED in (self._connection.application_state, self._connection.client_state):
                return None
            if self._connection.application_state is WebSocketState.CONNECTED:
                return WebSocketException(RESTART, LOST)
        return self.refusal(503, retry_after, None)

    def is_success(self, error: Exception) -> bool:
        if isinstance(error, exceptions.WebSocketException):
            return error.code == _NORMAL_CLOSURE
        return isinstance(error, exceptions.HTTPException) and error.status_code < 400


def _may_deny(socket: WebSocket) -> bool:
    """Return True if *socket* can be answered with a status: not accepted yet, and the server supports it."""
    extensions: object = socket.scope.get("extensions")
    denial = isinstance(extensions, dict) and "websocket.http.response" in extensions
    return denial and socket.application_state is WebSocketState.CONNECTING


def _invalid(connection: HTTPConnection, errors: Sequence[Any]) -> Exception:
    kind = WebSocketRequestValidationError if isinstance(connection, WebSocket) else RequestValidationError
    return kind(errors)


def _from_path(template: str) -> Callable[[HTTPConnection], Awaitable[str]]:
    fields = fields_of(template)

    async def name_of(connection: HTTPConnection) -> str:
        known = connection.path_params
        check_known(template, fields, known, connection.url.path, "a dependency that returns the name")
        errors: list[Any] = []
        values = {field: _value(connection, field, errors) for field in fields}
        if errors:
            raise _invalid(connection, errors)
        return name_from(template, values)

    return name_of


def _value(connection: HTTPConnection, field: str, errors: list[Any]) -> object:
    """Return *field* of the path as the endpoint and its dependencies get it; add validation errors to *errors*.

    FastAPI validates it by each of its declarations. A declaration that keeps the text of the URL counts only if all
    do: the endpoint may take the text, while for a dependency that takes an int, 7 and 007 are one order.
    """
    raw = connection.path_params[field]
    changed: dict[str, object] = {}
    unchanged: dict[str, object] = {}
    for parameter in _declared(_dependant(connection), field):
        values, found = request_params_to_args([parameter], connection.path_params)
        errors.extend(found)
        if not found:
            made = values[parameter.name]
            value = parameter.serialize(_one_of_equals(made, parameter.field_info.annotation), mode="json")
            (unchanged if made == raw else changed)[str(value)] = value
    names = changed or unchanged or {"": raw}
    if len(names) > 1:
        raise RuntimeError(
            f"{field!r} of the path is declared in several ways, which turn one value into {' and '.join(names)}: "
            "declare it in one way, or give locked() a dependency that returns the name"
        )
    return next(iter(names.values()))


def _declared(dependant: Dependant, field: str) -> list[Any]:
    """Return FastAPI's declarations of *field* in the endpoint and the dependencies of *dependant*."""
    todo, path, query = [dependant], list[Any](), list[Any]()
    for part in todo:
        path += [parameter for parameter in part.path_params if _alias(parameter) == field]
        query += [parameter for parameter in part.query_params if _alias(parameter) == field]
        todo += part.dependencies
    return path or query  # FastAPI declares a parameter of a mount's path as a query parameter


def _alias(parameter: Any) -> str:
    alias: str = getattr(parameter, "validation_alias", None) or parameter.alias
    return alias


def _dependant(connection: HTTPConnection) -> Dependant:
    """Return FastAPI's record of the endpoint of this request and its dependencies."""
    route = connection.scope["route"]
    included = connection.scope.get("fastapi", {}).get("effective_route_context")  # by `include_router`, since 0.137
    found = included if getattr(included, "original_route", None) is route else route
    dependant: Dependant = found.dependant
    return dependant


def _one_of_equals(value: object, declared: object) -> object:
    """Map equal values that print differently to one, such as 1.0 and 1.00, or 0 and -0."""
    if hasattr(value, "get_secret_value"):
        raise RuntimeError("a secret cannot be part of a lock's name: give locked() a dependency that returns the name")
    if isinstance(value, bool | float | Decimal) and int in _members(declared) and _is_short_integer(value):
        return int(value)  # `int | float` makes an int of 10 and a float of 1e1
    if isinstance(value, Decimal):
        value = _EXACT.normalize(value) if value else Decimal(0)
        return Decimal(format(value, "f")) if abs(value.adjusted()) < MAX_NAME_BYTES else value
    if isinstance(value, float) and not value:
        return 0.0
    if isinstance(value, datetime) and value.tzinfo is not None and MINYEAR < value.year < MAXYEAR:
        return value.astimezone(UTC)
    if isinstance(value, time) and value.utcoffset() is not None:
        return datetime.combine(date(2000, 1, 2), value).astimezone(UTC).timetz()
    return value


def _members(declared: object) -> set[object]:
    """Return the types of a union, without their annotations."""
    return {get_args(each)[0] if get_origin(each) is Annotated else each for each in get_args(declared)}


def _is_short_integer(value: bool | float | Decimal) -> bool:
    if isinstance(value, Decimal):
        return abs(value.adjusted()) < MAX_NAME_BYTES and value == value.to_integral_value(context=_EXACT)
    return float(value).is_integer()


_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
"""A context that never rounds or overflows. The default one, of 28 digits, would make different values equal."""
