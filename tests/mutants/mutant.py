"""What a mutant is."""

import re
from dataclasses import dataclass
from typing import final

_MARKER = re.compile(r"(?:#|--) (?:defect|equivalent): .+$", re.MULTILINE)
_EQUIVALENT = re.compile(r"(?:#|--) equivalent: (.+?), .+$", re.MULTILINE)
_PLACES = ("first", "second", "third", "fourth", "fifth")


def equivalents(text: str) -> dict[int, set[str]]:
    """Return which mutants no test can notice, by the line that a comment says so of: its own, or the next."""
    found: dict[int, set[str]] = {}
    lines = text.splitlines()
    for match in _EQUIVALENT.finditer(text):
        number = text.count("\n", 0, match.start())
        while lines[number].lstrip().startswith(("#", "--")):
            number += 1
        found.setdefault(number + 1, set()).update(match[1].split(" + "))
    return found


@final
@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file: *new* stands in place of what its text has from *start* to *end*."""

    path: str
    start: int
    end: int
    new: str
    kind: str

    def apply(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]

    def line(self, text: str) -> int:
        return text.count("\n", 0, self.start) + 1

    def described(self, text: str) -> str:
        """Return what it changes, wherever in the file that stands: its name in reports."""
        begin = text.rfind("\n", 0, self.start) + 1
        end = text.find("\n", self.end)
        end = end if end >= 0 else len(text)
        before, after = text[begin:end], text[begin : self.start] + self.new + text[self.end : end]
        return f"{self.path}: {_flat(before)}  ->  {_flat(after)}"


def _flat(lines: str) -> str:
    return " ".join(_MARKER.sub("", lines).split())


def names(mutant: Mutant, others: list[Mutant], text: str) -> set[str]:
    """Return how a comment can name it: its kind, what it puts there, or which of those that put that there."""
    line = mutant.line(text)
    alike = [other for other in others if other.new == mutant.new and other.line(text) == line]
    return {mutant.kind, mutant.new, f"{mutant.new} ({_PLACES[min(alike.index(mutant), 4)]})"}
