"""What a defect is, and short ways to write one down."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from tests.support.garden import Garden

from .things import FIRST_KINDS


@final
@dataclass(frozen=True, slots=True)
class Defect:
    """What is wrong, how it is planted, and which checks may find it: the beginnings of their texts.

    Attributes:
        kinds: What is fought over where it is looked for; nothing, where tests on a real server alone find it.
        cluster: It is looked for on the nodes of a Cluster.
    """

    plant: Callable[[Garden], None]
    caught_by: tuple[str, ...]
    kinds: tuple[str, ...] = FIRST_KINDS
    cluster: bool = False


def lua(name: str, old: str, new: str) -> Callable[[Garden], None]:
    return lambda garden: garden.lua(name, old, new)


def shared(old: str, new: str) -> Callable[[Garden], None]:
    return lambda garden: garden.shared(old, new)


def python(owner: Any, name: str, old: str, new: str) -> Callable[[Garden], None]:
    return lambda garden: garden.source(owner, name, old, new)
