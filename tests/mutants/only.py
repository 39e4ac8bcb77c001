"""A plugin of pytest: only the tests of AIOLOCKS_ONLY, a file, in its order; the id of what fails goes into another."""

import os
from pathlib import Path

import pytest

_WANTED, _FAILED = Path(os.environ["AIOLOCKS_ONLY"]), Path(os.environ["AIOLOCKS_FAILED"])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    known = {item.nodeid: item for item in items}
    wanted = dict.fromkeys(_WANTED.read_text(encoding="utf-8").splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
    items[:] = [known[test] for test in wanted if test in known]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with _FAILED.open("a", encoding="utf-8") as file:
            file.write(report.nodeid + "\n")
