"""The workbench around the Flower app: experiments, engines, sweeps, costs, reports, exports, the command line.

From Python: `run(settings)`, `load(folder)`, `methods()` and `check_method(name)`; docs/python.md. The import is cheap:
what is heavy is imported by what needs it.
"""

from fedskew.result import Result, check_method, load, methods, run

__all__ = ["Result", "check_method", "load", "methods", "run"]
