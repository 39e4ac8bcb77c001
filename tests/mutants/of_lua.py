"""Mutants of a Lua file: by its words, as there is no parser at hand, and none is needed for changes this small."""

import re
from collections.abc import Iterator

from tests.mutants.mutant import Mutant

_WORDS = re.compile(
    r"(?P<comment>--[^\n]*)"
    r"|(?P<digits>'-?\d+')"
    r"|(?P<string>'[^'\n]*'|\"[^\"\n]*\")"
    r"|(?P<name>[A-Za-z_][\w.]*)"
    r"|(?P<number>\d+(?:\.\d+)?(?:e\d+)?)"
    r"|(?P<sign>==|~=|<=|>=|\.\.|[^\s\w])"
)

_SWAPS = {
    "==": ("~=", "comparison"), "~=": ("==", "comparison"),
    "<": ("<=", "comparison"), "<=": ("<", "comparison"), ">": (">=", "comparison"), ">=": (">", "comparison"),
    "and": ("or", "and/or"), "or": ("and", "and/or"), "not": ("", "not dropped"),
    "true": ("false", "constant"), "false": ("true", "constant"),
    "math.min": ("math.max", "min/max"), "math.max": ("math.min", "min/max"),
}  # fmt: skip

_LEFT_OUT = re.compile(
    r"(?m:^local [A-Z_]+ = [^{\n]*$)"  # a number with a name
    r"|(?<=\bor )0(?=[,)\s])"  # of what is missing: smaller than any time or fencing token, as 1 is
    r"|(?<='yes', )[^\n]*"  # how many can be had is asked only where the answer is no
    r"|(?<=, )1, true(?=\))"  # of string.find: from the beginning, and no pattern
    r"|(?<=, )'?0'?(?=(?:, 'WITHSCORES')?\)\[[12]\])"  # the end of a range of which the first alone is read
)
"""What is not mutated."""

_BOUNDS = {"<", "<=", ">", ">="}
_LIVES = re.compile(r"\b(?:PTTL|longest|needed|kept_until)\b")
"""How long leases and keys last."""

_STATEMENT = re.compile(r"^ *((?!local\b|function\b|return\b|if\b|for\b|while\b|repeat\b)[\w.\[\]#]+(?: = .+|\(.+\)))$")
_BRANCH = re.compile(r"\b(?:else)?if (.+?) then\b")
_SIGN = re.compile(r" ([+-]) (?!0\b)")  # "+ 0" makes a number of a text, as "- 0" would


def mutants(path: str, text: str) -> list[Mutant]:
    """Return all of a file, in the order of its text."""
    return sorted(_all(path, text), key=lambda mutant: (mutant.start, mutant.end, mutant.new))


def _all(path: str, text: str) -> Iterator[Mutant]:
    if path.endswith("/version.lua"):
        return  # a digest: any numbers tell texts apart
    left_out = {at for match in _LEFT_OUT.finditer(text) for at in range(*match.span())}
    for word in _WORDS.finditer(text):
        if word.start() in left_out:
            continue
        found = word[0]
        if word["digits"]:
            yield Mutant(path, *word.span(), f"'{int(found[1:-1]) + 1}'", "constant")
        elif word["number"]:
            more = f"{found}0" if "e" in found else str(float(found) + 1).removesuffix(".0")
            yield Mutant(path, *word.span(), more, "constant")
        elif found in _SWAPS:
            line = text[text.rfind("\n", 0, word.start()) + 1 : text.find("\n", word.end())]
            if not (found in _BOUNDS and _LIVES.search(line)):  # where both are equal, either gives the same
                yield Mutant(path, *word.span(), *_SWAPS[found])
    at = 0
    for line in text.splitlines(keepends=True):
        code = _WORDS.sub(lambda word: "" if word["comment"] else word[0], line).rstrip()
        statement = _STATEMENT.match(code)
        if statement and code.count("(") == code.count(")") and code.count("{") == code.count("}"):
            yield Mutant(path, at + statement.start(1), at + statement.end(1), "", "line dropped")
        for branch in _BRANCH.finditer(code):
            yield Mutant(path, at + branch.start(1), at + branch.end(1), f"not ({branch[1]})", "branches swapped")
        for sign in _SIGN.finditer(code):
            yield Mutant(path, at + sign.start(1), at + sign.end(1), "-" if sign[1] == "+" else "+", "sign")
        at += len(line)
