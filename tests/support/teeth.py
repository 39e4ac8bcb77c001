"""Tests tried with the defects that are attached to them, by `pytest -p tests.support.teeth`: each must fail by itself.

The failure has to be one of the test's own assertions, while it runs: a defect that breaks what the test needs before
it comes to its point is not found. See `tests.simulation.attached`.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.simulation.attached import ATTACHED, Attached
from tests.support.garden import Garden

_ROOT = Path(__file__).parents[2]
_HELPERS = {Path(__file__).with_name(name) for name in ("lateness.py", "cases.py")}
"""Files whose failures count as failures of the test that calls them."""

_failures = pytest.StashKey[BaseException]()


def is_own(failure: BaseException, home: str, name: str = "") -> bool:
    """Return whether the failed assertion is in the file *home*, and in the function *name* of it if one is given."""
    own = False
    trace: TracebackType | None = failure.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        path = Path(code.co_filename)
        if path.is_relative_to(_ROOT / "tests") and path not in _HELPERS:
            own = code.co_filename == home and (not name or name in code.co_qualname.split("."))
        trace = trace.tb_next
    return own and isinstance(failure, AssertionError | pytest.fail.Exception)


def try_them(of: str) -> None:
    """Try the tests of a file or folder with the defects attached to them, in a process of their own."""
    names = {
        attached.test.partition("[")[0] for attached in ATTACHED.values() if of in (attached.path, attached.folder)
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.teeth", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-o", "timeout=100", *sorted(names)], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == pytest.ExitCode.OK, done.stdout[-8000:] + done.stderr


def _of(items: list[Any]) -> dict[str, dict[str, Attached]]:
    """Return, for each test that is to be tried, the defects attached to it."""
    found: dict[str, dict[str, Attached]] = {}
    for name, attached in ATTACHED.items():
        alike = [item for item in items if attached.test in (item.nodeid, item.nodeid.partition("[")[0])]
        for words in attached.rows if alike else ():
            fits = [item for item in alike if set(words.split()) <= _words(item) and "memory" not in _words(item)]
            if not fits:
                raise pytest.UsageError(f"{attached.test} has no row {words!r}, for {name!r}")
            found.setdefault(fits[0].nodeid, {})[name] = attached
    return found


def _words(item: Any) -> set[str]:
    return set(item.callspec.id.replace(" ", "_").split("-")) if hasattr(item, "callspec") else set()


_tried: dict[str, dict[str, Attached]] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _tried.update(_of(items))
    items[:] = [item for item in items if item.nodeid in _tried]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Iterator[None]:
    yield
    if call.when == "call" and call.excinfo is not None:
        item.stash[_failures] = call.excinfo.value


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: Any, nextitem: pytest.Item | None) -> bool:
    defects = list(_tried[item.nodeid].items())
    for at, (name, attached) in enumerate(defects):
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        item.stash[_failures] = None
        item._initrequest()
        with ExitStack() as undo:
            attached.plant(Garden(undo))
            last = at == len(defects) - 1
            reports = runtestprotocol(item, log=False, nextitem=nextitem if last else item.parent)
        failure: Any = item.stash[_failures]
        found = failure is not None and (
            attached.says in f"{type(failure).__name__}: {failure}"
            if attached.says
            else is_own(failure, str(item.path), item.originalname)
        )
        [*_, report] = [each for each in reports if each.when == "call"] or [reports[0]]
        if not found:
            report.sections.append(("how it ended", f"{report.outcome}: {report.longrepr}"))
            report.longrepr = f"{name!r} is not found by an assertion of {item.nodeid}"
        report.when, report.outcome = "call", "passed" if found else "failed"
        item.ihook.pytest_runtest_logreport(report=report)
    return True
