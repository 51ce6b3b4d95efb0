"""The rows of the table "Faults": by number, what is done, and who does it and looks at what became of it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from faults.kills import (
    everything_killed,
    executor_training,
    gate_halted,
    link_uploading,
    service_killed,
    superexec_killed,
    supernode_idle,
    supernode_training,
    supernode_uploading,
)
from faults.malicious_sites import sends, tenfold
from faults.offline_sites import away, below_minimum, line_cut
from faults.stage import Stage
from faults.storage import flip, memory_damaged, server_disk_full, site_disk_full
from faults.trial_result import TrialResult
from fedskew.federation.services import GATEWAY, SERVER_APP, SUPERLINK

ROWS: Mapping[int, Sequence[tuple[str, Callable[[Stage, str], TrialResult]]]] = {
    1: [("SuperNode -9 while idle", supernode_idle)],
    2: [("SuperNode -9 while training", supernode_training)],
    3: [("executor -9 while training", executor_training)],
    4: [("SuperNode away for three rounds, then back", away)],
    5: [("ServerApp -9", service_killed(SERVER_APP))],
    6: [("SuperLink -9, started again", service_killed(SUPERLINK))],
    7: [("gateway -9, started again", service_killed(GATEWAY))],
    8: [("line of one site down for 30 s", line_cut(30))],
    9: [("line of one site down for 90 s", line_cut(90))],
    10: [("everything -9 at once, `up` and `run` again", everything_killed)],
    11: [("disk full at a site", site_disk_full), ("disk full at the server", server_disk_full)],
    12: [("a site's memory file deleted", memory_damaged(Path.unlink)),
         ("one bit of it changed", memory_damaged(flip))],
    13: [("a site sends NaN", sends("nan")), ("wrong shapes", sends("shapes")), ("nothing", sends("nothing")),
         ("ten times its update", tenfold)],
    14: [("below min-sites", below_minimum)],
    15: [("flower-superexec -9, then a run", superexec_killed)],
    16: [("gateway halted for two minutes", gate_halted)],
    17: [("SuperNode -9 in its upload in three of ten rounds, then away", supernode_uploading),
         ("all of a site's link, each time started after the round", link_uploading)],
}  # fmt: skip
"""By number, what is done, and who does it."""
