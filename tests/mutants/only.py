"""A plugin of pytest: of the promises of every primitive, only those of the rows that AIOLOCKS_ROWS names."""

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rows = set(filter(None, os.environ.get("AIOLOCKS_ROWS", "").split(",")))
    others = [item for item in items if rows and _row(item) not in {None, *rows}]
    config.hook.pytest_deselected(items=others)
    gone = set(others)
    items[:] = [item for item in items if item not in gone]


def _row(item: pytest.Item) -> str | None:
    row = getattr(item, "callspec", None) and item.callspec.params.get("row")  # type: ignore[attr-defined]
    return str(row) if row else None
