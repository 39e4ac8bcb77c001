"""The registry of kinds says of each primitive what the primitive itself shows, and leaves none out."""

import inspect

import pytest

import aiolocks
from aiolocks import LockManager
from aiolocks._core.hints import NameHints
from aiolocks._core.keys import Keys
from aiolocks._core.kinds import Kind
from aiolocks._primitives.base import Acquirable
from tests.support.kinds import EVERY_KIND, KINDS
from tests.support.primitives import EVERY_ROW, NO_SERVER, Row


def made(kind: Kind) -> Acquirable:
    row = next(row for row in EVERY_ROW if row.kind is kind)
    primitive = row.make(NO_SERVER, "orders")
    assert isinstance(primitive, Acquirable)
    return primitive


def test_every_public_primitive_is_in_the_registry_once() -> None:
    public = {
        name for name in aiolocks.__all__ if getattr(aiolocks, name).__module__.startswith("aiolocks._primitives")
    }
    assert sorted(kind.class_name for kind in KINDS) == sorted(public - {"Statistics"})
    for word in ("name", "key_word"):
        assert len({getattr(kind, word) for kind in EVERY_KIND}) == len(EVERY_KIND)


@pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if kind.loop], ids=str)
def test_a_loop_around_a_lease_has_the_keys_of_its_kind_and_lacks_the_options_that_it_says(kind: Kind) -> None:
    cls = getattr(aiolocks, kind.class_name)
    assert issubclass(cls, NameHints)
    assert not issubclass(cls, Acquirable)
    assert Keys("aiolocks:", kind.name, "a").base.startswith(b"aiolocks:%b:{" % kind.key_word.encode())
    options = inspect.signature(cls).parameters
    untracked = set() if kind.tracked else {"track"}
    assert set(inspect.signature(aiolocks.Lock).parameters) - set(options) == {*kind.without, *untracked}
    assert (kind.leased, kind.replicated) == ("ttl" in options, "replicas" in options)
    assert kind.method in dir(LockManager)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.leased], ids=str)
def test_a_kind_has_the_name_the_family_and_the_options_of_its_class(kind: Kind) -> None:
    primitive = made(kind)
    assert primitive._kind == kind.name
    assert primitive._keys.family == kind.family
    assert primitive._keys.base.startswith(b"aiolocks:%b:{" % kind.key_word.encode())
    options = inspect.signature(getattr(aiolocks, kind.class_name)).parameters
    assert {"replicas": kind.replicated, "track": kind.tracked} == {
        option: option in options for option in ("replicas", "track")
    }
    assert kind.permits is ("permits" in inspect.signature(made(kind).acquire).parameters)
    assert kind.several is (len(made(kind)._every_keys()) > 1)
    assert kind.quorum is ("clients" in options)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_kind_has_the_word_the_modes_and_the_method_that_it_says(kind: Kind) -> None:
    assert Keys("app:", kind.name, "a").base == b"app:%b:{a}" % kind.key_word.encode()
    cls = getattr(aiolocks, kind.class_name)
    if kind.modes:
        primitive = cls(NO_SERVER, "a")
        public = {name for name in dir(primitive) if not name.startswith("_")}
        assert set(kind.modes) == {name for name in public if isinstance(getattr(primitive, name), Acquirable)}
    assert issubclass(cls, Acquirable) is (kind.leased and not kind.modes)
    methods = {name for name, _ in inspect.getmembers(LockManager, inspect.isfunction)}
    assert kind.method in methods or (kind.method == "" and kind.name not in methods)


@pytest.mark.parametrize("row", EVERY_ROW, ids=str)
def test_a_row_is_of_the_kind_that_it_says(row: Row) -> None:
    primitive = row.make(NO_SERVER, "orders")
    assert isinstance(primitive, Acquirable)
    assert primitive._kind == row.kind.name
