"""The workbench around the Flower app: experiments, engines, sweeps, costs, reports, exports, the command line.

From Python: `run(settings)`, `compare(methods)`, `from_arrays(train, test)`, `load(folder)`, `methods()` and
`check_method(name)`; see docs/guides/python.md.
`fedskew.methods` has the names for a method of your own, `fedskew.flower` the methods inside any Flower app.
The import is cheap: heavy modules are imported by the functions that need them.
"""

from typing import TYPE_CHECKING, Any

from fedskew.own_packages import find_ours

if TYPE_CHECKING:
    from fedskew.arrays import from_arrays

find_ours()

# It imports these packages, so it stands below.
from fedskew import methods  # noqa: E402
from fedskew.api import Result, check_method, load, run  # noqa: E402
from fedskew.comparison import Comparison, compare  # noqa: E402

__all__ = [
    "Comparison", "Result", "check_method", "compare", "from_arrays", "load", "methods", "run",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return `from_arrays`, which needs numpy: the import of this package does without."""
    if name != "from_arrays":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedskew.arrays import from_arrays

    return from_arrays
