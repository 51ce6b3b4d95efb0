"""How a race ended, and what it says at its end: the winner, its gain over FedAvg, and which candidate to take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedskew.method_selection.candidates import BASELINE, Candidate
from fedskew.method_selection.standing import StepResult
from fedskew.method_selection.uncertainty import Difference
from fedskew.report.unfit_rows import CHANCE_REMEDY


@dataclass(frozen=True)
class Ended:
    """How a race ended."""

    standings: Sequence[StepResult]
    rounds: int
    """Of the full runs."""
    winner: Candidate
    baseline: Candidate | None
    """FedAvg with its best learning rate; None where none of its runs has finished."""
    shown: Sequence[Candidate]
    """The best of each method by the last full runs, those who could win to the end among them."""
    without_uploads: Candidate | None
    """The best of those that upload nothing beside the model."""
    equals: Sequence[Candidate] = ()
    """Those within two standard errors of the winner."""
    validated: Difference | None = None
    """What the winner has over FedAvg on validation data, by seeds that the race has not seen; it decides."""
    tested: Difference | None = None
    """The same on the test set, which decides nothing."""
    gain_by_seed: Mapping[int, float] = field(default_factory=dict)
    """On the test set."""
    diverged: Mapping[Candidate, Sequence[int]] = field(default_factory=dict)
    """The seeds in which candidates diverged."""
    at_chance: str = ""
    """The winner's balanced accuracy beside chance where it is no better; else empty."""

    @property
    def distinguishable(self) -> bool:
        """Whether the winner is above FedAvg on validation data, beyond other seeds and samples.

        A seed in which one of the two diverged is no seed that can be left out.
        """
        if self.winner in self.diverged or self.baseline in self.diverged:
            return False
        return self.validated is not None and self.validated.interval()[0] > 0

    @property
    def nothing_to_take(self) -> bool:
        """Whether the winner is no better than chance, or `take` diverged in a seed."""
        return bool(self.at_chance) or self.take in self.diverged

    @property
    def take(self) -> Candidate:
        """The candidate to take: the winner where it is distinguishably above FedAvg, else FedAvg."""
        if self.baseline is None or self.distinguishable:
            return self.winner
        return self.baseline


NOBODY = "no method is distinguishable from FedAvg here"


def conclusion(ended: Ended) -> list[str]:
    """Return what the race ends with, in lines."""
    place = "first on validation data" if ended.nothing_to_take else "winner"
    lines = [f"{place}: {ended.winner}"]
    if ended.equals:
        names = ", ".join(map(str, ended.equals))
        lines.append(f"within two standard errors of it on validation data: {names}")
    lines += gain_lines(ended)
    if ended.without_uploads is None:
        lines.append("no method that uploads nothing beside the model has finished")
    elif ended.without_uploads == ended.winner:
        lines.append("the winner uploads nothing beside the model")
    else:
        lines.append(f"best of those that upload nothing beside the model: {ended.without_uploads}")
    return [*lines, *what_to_take(ended)]


def gain_line(where: str, gain: Difference) -> str:
    """Return a gain over FedAvg in a line: mean and interval."""
    low, high = gain.interval()
    ends = f"95 % interval {low:+.1f} to {high:+.1f} over {gain.covers}"
    return f"gain over FedAvg {where}: {gain.mean:+.1f} points, {ends}"


def gain_lines(ended: Ended) -> list[str]:
    """Return what the winner has over FedAvg, in lines."""
    lines = []
    if ended.validated is not None:
        lines.append(gain_line("on validation data, which decides", ended.validated))
        if ended.tested is not None:
            by_seed = ", ".join(f"{gain:+.1f}" for gain in ended.gain_by_seed.values())
            lines.append(f"{gain_line('on the test set', ended.tested)} ({by_seed})")
        if not ended.distinguishable:
            lines.append(NOBODY)
        elif ended.tested is not None and ended.tested.interval()[0] <= 0:
            lines.append("the test set is too small, or the seeds too few, to confirm the gain")
    elif ended.winner.method == BASELINE:
        lines.append(f"{NOBODY}: FedAvg itself is the best")
    elif ended.baseline is None:
        lines.append("FedAvg has finished no run: the winner is compared with nothing")
    else:
        lines.append(
            "the winner and FedAvg have fewer than two seeds in common, too few to compare them"
        )
    return lines


def what_to_take(ended: Ended) -> list[str]:
    """Return what diverged, whether the level is chance, and last of all what to take."""
    lines = []
    for candidate, seeds in ended.diverged.items():
        named = ", ".join(map(str, seeds))
        lines.append(f"{candidate} diverged in seed {named}: a lower learning-rate may help")
    if ended.at_chance:
        lines.append(f"that is no better than chance: {ended.at_chance} balanced accuracy")
    if ended.nothing_to_take:
        return [*lines, f"take none of them: {CHANCE_REMEDY}"]
    return [*lines, f"take {ended.take}"]
