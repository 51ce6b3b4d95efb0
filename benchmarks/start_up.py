"""Commands that train nothing: each a process of its own, beside one that imports torch and one that does nothing.

Before the lists did without torch `fedskew list methods` took 1.36 times importing torch; the goal is 0.4 of that.
A plan's goal is five seconds on a machine where importing torch takes three.
"""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.figures import Row, alternate, figure, seconds

GOAL, PLAN_GOAL = 0.54, 1.67
PLAN = "fedskew run creff-table1 --dry-run"
COMMANDS = {
    "fedskew list methods": ["-m", "fedskew", "list", "methods"],
    "fedskew --help": ["-m", "fedskew", "--help"],
    "fedskew run --set metod=fedavg": ["-m", "fedskew", "run", "--set", "metod=fedavg"],
    PLAN: ["-m", *PLAN.split()],
    "import torch": ["-c", "import torch"],
    "python -c pass": ["-c", "pass"],
}


def rows() -> Iterator[Row]:
    """Yield the figures."""
    run = partial(subprocess.run, capture_output=True)
    actions = [partial(run, [sys.executable, *words]) for words in COMMANDS.values()]
    times = dict(zip(COMMANDS, alternate(*actions, measurements=9), strict=True))
    for name in list(COMMANDS)[:3]:
        yield figure(f"`{name}` / `import torch`", times[name], times["import torch"], GOAL)
    yield figure(f"`{PLAN}` / `import torch`", times[PLAN], times["import torch"], PLAN_GOAL)
    for name, measured in times.items():
        yield seconds(f"`{name}`", measured)
