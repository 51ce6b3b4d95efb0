"""The workbench around the Flower app: experiments, engines, sweeps, costs, reports, exports, the command line.

From Python: `run(settings)`, `load(folder)`, `methods()` and `check_method(name)`; docs/python.md. The import is cheap:
what is heavy is imported by what needs it.
"""

from fedskew.own_packages import find_ours

find_ours()

# It imports these packages, so it stands below.
from fedskew.api import Result, check_method, load, methods, run  # noqa: E402

__all__ = ["Result", "check_method", "load", "methods", "run"]
