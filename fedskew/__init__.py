"""The workbench around the Flower app: experiments, engines, sweeps, costs, reports, exports, the command line.

From Python: `run(settings)`, `load(folder)`, `methods()` and `check_method(name)`; see docs/guides/python.md.
`fedskew.methods` has the names for a method of your own, `fedskew.flower` the methods inside any Flower app.
The import is cheap: heavy modules are imported by the functions that need them.
"""

from fedskew.own_packages import find_ours

find_ours()

# It imports these packages, so it stands below.
from fedskew import methods  # noqa: E402
from fedskew.api import Result, check_method, load, run  # noqa: E402

__all__ = ["Result", "check_method", "load", "methods", "run"]
