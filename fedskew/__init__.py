"""The workbench around the Flower app: experiments, engines, sweeps, costs, reports, exports, the command line.

From Python: `run(settings)`, `compare(methods)`, `from_arrays(train, test)`, `load(folder)`, `methods()` and
`check_method(name)`; see docs/guides/python.md.
`fedskew.methods` has the names for a method of your own, `fedskew.flower` the methods inside any Flower app.
The import is cheap: heavy modules are imported by the functions that need them.
"""

from fedskew.own_packages import find_ours

find_ours()

# It imports these packages, so it stands below.
from fedskew import methods  # noqa: E402
from fedskew.api import Result, check_method, load, run  # noqa: E402
from fedskew.arrays import from_arrays  # noqa: E402
from fedskew.comparison import Comparison, compare  # noqa: E402

__all__ = [
    "Comparison", "Result", "check_method", "compare", "from_arrays", "load", "methods", "run",
]  # fmt: skip
