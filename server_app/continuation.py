"""Continuation: a run begins with the first rounds of the same run with fewer rounds.

Nothing in a round knows how many follow, but for what a last round adds: its evaluation, the final questions of heads,
fine-tuning, an unseen site. So a longer run continues from the checkpoint before the shorter run's last round: all that
it takes over, weights, states, memory and records, is what it would have made itself. One round is trained again.
"""

import json
from dataclasses import replace

from client_app.memory import MemoryLost, file_of, folder_of, identity
from client_app.tensor_files import Damaged, read, write_atomically
from server_app.checkpoint import BrokenCheckpoint, Checkpoint, check_memory
from server_app.run_folder import RunFolder, line_of, write_text
from server_app.run_settings import RunSettings


def rounds_taken_over(shorter: int) -> int:
    """Return how many rounds a longer run takes over of a run with `shorter` rounds, which is at least 1."""
    return shorter - 1


def without_rounds(settings: RunSettings) -> str:
    """Return a text that is equal for two runs of which the longer one can continue the shorter one.

    It is made of everything that the hash in a run's id is made of, but for the number of rounds. A cosine schedule
    without schedule-rounds has the run's rounds as its length: such runs differ from the first round on, and the longer
    one starts anew. IWDS's decay counts rounds from the first one, so it is the same in runs of any length.
    """
    hashed = settings.hashed_settings()
    hashed.pop("rounds", None)
    return json.dumps([settings.general.method, hashed], sort_keys=True)


def can_continue(longer: RunSettings, shorter: RunSettings) -> bool:
    """Return whether a run of these settings has the numbers of a full one where it continues the shorter one."""
    if longer.general.overwrite or shorter.general.rounds >= longer.general.rounds:
        return False
    # Best rounds have files and memory of their own, and patience may have ended the shorter run.
    if longer.general.keep_best:
        return False
    # A site keeps its memory itself, under the run's name.
    if longer.agreement is not None:
        return False
    return without_rounds(longer) == without_rounds(shorter)


def continue_from(longer: RunSettings, shorter: RunSettings) -> int:
    """Let a run that has not begun resume after the rounds that a finished shorter run shares with it.

    Args:
        longer: the run that is going to be executed.
        shorter: the same with fewer rounds; `can_continue` says whether it is.

    Returns:
        The number of rounds that the longer run need not train; 0 where it has begun already, or where the shorter
        run's files do not suffice, so that it starts anew.

    Raises:
        FolderBusy: another process works on one of the runs.
        WriteFailed: a file cannot be written.
    """
    source = RunFolder(shorter.folder)
    target = RunFolder(longer.folder)
    if source.finished(shorter.general.rounds) is None:
        return 0
    with source.locked(), target.locked():
        if target.checkpoint_file.exists() or target.summary_file.exists():
            return 0
        try:
            checkpoint = Checkpoint.load(source.previous_file)
            check_memory(source, checkpoint)
            records = [line for line in source.lines() if line[1].round <= checkpoint.round]
            if len(records) < checkpoint.round:
                return 0  # with a lost record, a report would lack a round that the longer run can give it
            copy_memory(source, target, checkpoint)
        except (FileNotFoundError, BrokenCheckpoint, Damaged, MemoryLost):
            return 0
        lines = []
        for _, record in records:
            of_all = f"/{longer.general.rounds}  "
            text = record.line.replace(f"/{shorter.general.rounds}  ", of_all, 1)
            content = replace(record, line=text).to_json()
            lines.append(line_of({**content, "run": target.run}))
        write_text(target.rounds_file, "".join(lines))
        # It names the data and the version of the code that these rounds were made of.
        origin = {**source.origin(), "run": target.run}
        write_text(target.settings_file, line_of(origin, indent=2))
        # The last one: without a checkpoint, a kill before it makes the run begin anew.
        checkpoint.save(target.checkpoint_file)
        return checkpoint.round


def copy_memory(source: RunFolder, target: RunFolder, checkpoint: Checkpoint) -> None:
    """Copy the clients' memory that a checkpoint names into another run, as memory of that run.

    Raises Damaged, and MemoryLost where a client's file is not there.
    """
    for client, round in checkpoint.memory_rounds.items():
        folder = folder_of(source.path, client)
        path = file_of(folder, round)
        if not path.exists():
            raise MemoryLost(f"the memory of round {round} is not at {path}")
        tensors, _ = read(path, identity(folder, round, source.run))
        copied = folder_of(target.path, client)
        write_atomically(file_of(copied, round), tensors, identity(copied, round, target.run))
