"""Many cases: small ones in one test, as each parameter costs every worker an item; and long ones, a few every time."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps

import pytest

Test = Callable[..., None]


def one_by_one(names: str, cases: Iterable[object]) -> Callable[[Test], Test]:
    """Do as `pytest.mark.parametrize` does, within one test, with one set of fixtures; a failure says which case it is.

    Only for what leaves nothing behind for the next case.
    """
    arguments, rows = names.split(", "), list(cases)

    def decorate(test: Test) -> Test:
        assert rows, "no case"
        signature = inspect.signature(test)
        fixtures = [one for name, one in signature.parameters.items() if name not in arguments]

        @wraps(test)
        def all_of_them(**given: object) -> None:
            for row in rows:
                values = row if isinstance(row, tuple) and len(arguments) > 1 else (row,)
                try:
                    test(**given, **dict(zip(arguments, values, strict=True)))
                except BaseException as failure:
                    failure.add_note(f"The case: {', '.join(map(repr, values))}")
                    raise

        all_of_them.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return all_of_them

    return decorate


def the_rest_slow(cases: Iterable[object], *, quick: int) -> list[object]:
    """Return *cases* as parameters, of which every run takes the first few and CI all."""
    return [case if at < quick else marked(case, pytest.mark.slow) for at, case in enumerate(cases)]


def marked(case: object, mark: pytest.MarkDecorator) -> object:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=mark)
