"""The ServerApp of a sweep on Ray: one `flwr run`, in which it executes run after run.

fedskew/engines/ray_sweep.py starts it and writes an order for each run, a file with the run's settings. The answer is
a file, too. Clients need no new process for another run: each message names the run's settings.
"""

import itertools
import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from data.text import printable, sentence
from fedskew.engines.processes import launcher_lives
from fedskew.engines.ray_sweep import answer_file, end_line, order_file
from server_app.app import run_and_warn
from server_app.run_folder import write_text
from server_app.settings import parse

app = ServerApp()
INTERVAL = 0.05
"""Seconds between two looks for the next order."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Execute the sweep's runs in the order of their numbers, until the launcher ends this process or is gone."""
    home = Path(os.environ["FLWR_HOME"])
    for number in itertools.count():
        order = order_file(home, number)
        while not order.exists():
            if not launcher_lives():
                return
            time.sleep(INTERVAL)
        reason = attempt(grid, json.loads(order.read_text(encoding="utf-8")))
        print(end_line(number), end="", flush=True)
        write_text(answer_file(home, number), json.dumps({"reason": reason}))


def attempt(grid: Grid, config: dict[str, Any]) -> str:
    """Execute the run of these settings and return why it failed, or "" when its summary is there.

    An error is answered, not raised: raised, it would end Ray for the whole sweep, and the reason would have to be
    found in flwr's log.
    """
    try:
        run_and_warn(grid, parse(config))
    except Exception as error:
        traceback.print_exc()  # for the run's flwr.log
        return printable(sentence(error))
    return ""
