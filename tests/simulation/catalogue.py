"""Every planted defect by its name: those that schedules find, and those that a test does.

python -m tests.simulation.catalogue [WORD…]      prints the names that have these words
AIOLOCKS_DEFECT=NAME python -m pytest -p tests.support.planted …      runs tests, some of which must fail
"""

import sys

from tests.simulation.attached import ATTACHED
from tests.simulation.defects import DEFECTS
from tests.simulation.planting import Plant


def catalogue() -> dict[str, Plant]:
    """Return what plants each of them."""
    found = {name: attached.plant for name, attached in ATTACHED.items()}
    return found | {name: defect.plant for name, defect in DEFECTS.items()}


if __name__ == "__main__":
    print(*(name for name in catalogue() if all(word in name for word in sys.argv[1:])), sep="\n")
