"""The pictures of the documents are what their script draws: `python .docs/pictures.py` draws them again."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from aiolocks._engine.lease_state import End

pytestmark = pytest.mark.rest

REPOSITORY = Path(__file__).parents[2]
PICTURES = REPOSITORY / "examples" / "pictures"
SCRIPT = runpy.run_path(str(REPOSITORY / ".docs" / "pictures.py"))
DRAWN: dict[str, Callable[[], str]] = SCRIPT["DRAWN"]


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_what_its_script_draws_in_light_or_dark_and_fetches_nothing(name: str) -> None:
    drawn = PICTURES.joinpath(f"{name}.svg").read_text(encoding="utf-8")
    assert drawn == DRAWN[name]()
    assert "prefers-color-scheme" in drawn
    assert set(re.findall(r"https?://[^\"\s]*", drawn)) <= {"http://www.w3.org/2000/svg", "https://www.textualize.io"}


def test_every_svg_has_a_script() -> None:
    assert {path.stem for path in PICTURES.glob("*.svg")} == {*DRAWN}


def test_the_picture_of_the_states_has_every_end_of_a_lease() -> None:
    assert [end for end, _, _ in SCRIPT["ENDS"]] == [end.value for end in End]
