"""The rows of the table "Faults": by number, what is done, and who does it and looks at what became of it."""

from collections.abc import Callable, Mapping

from faults.kills import everything_killed, executor_training, service_killed, supernode_training
from faults.malicious_sites import tenfold
from faults.offline_sites import away
from faults.stage import Stage
from faults.trial_result import TrialResult
from fedskew.federation.service import SERVER_APP, SERVICE

ROWS: Mapping[int, tuple[str, Callable[[Stage, str], TrialResult]]] = {
    1: ("SuperNode -9 while training", supernode_training),
    2: ("executor -9 while training", executor_training),
    3: ("ServerApp -9", service_killed(SERVER_APP)),
    4: ("SuperLink -9, started again", service_killed(SERVICE)),
    5: ("everything -9 at once, `up` and `run` again", everything_killed),
    6: ("a site sends ten times its update", tenfold),
    7: ("SuperNode away for three rounds, then back", away),
}
"""By number, what is done, and who does it."""
