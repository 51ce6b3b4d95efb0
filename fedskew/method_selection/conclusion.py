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
    """The winner's number beside chance where it is no better, and what it is; else empty."""

    @property
    def distinguishable(self) -> bool:
        """Whether the winner is above FedAvg on validation data, beyond other seeds and samples.

        A seed in which one of the two diverged is no seed that can be left out.
        """
        if self.winner in self.diverged or self.baseline in self.diverged:
            return False
        return self.validated is not None and self.validated.interval()[0] > 0

    @property
    def has_won(self) -> bool:
        """Whether the first on validation data is sound: it is better than chance and diverged in no seed."""
        return not self.at_chance and self.winner not in self.diverged

    @property
    def nothing_to_take(self) -> bool:
        """Whether the winner is no better than chance, or `take` diverged in a seed."""
        return bool(self.at_chance) or self.take in self.diverged

    @property
    def take(self) -> Candidate:
        """The candidate to take: the winner where it is distinguishably above FedAvg, else FedAvg.

        Where only FedAvg diverged it is the winner.
        """
        if self.baseline is None or self.distinguishable:
            return self.winner
        only_baseline = self.baseline in self.diverged and self.winner not in self.diverged
        return self.winner if only_baseline else self.baseline

    def seeds_of(self, candidate: Candidate) -> str:
        """Return where a candidate diverged: "fedavg (0.0625) diverged in seed 101"; empty where in no seed."""
        seeds = self.diverged.get(candidate, ())
        word = "seed" if len(seeds) == 1 else "seeds"
        named = ", ".join(map(str, seeds))
        return f"{candidate} diverged in {word} {named}" if seeds else ""


NOBODY = "no method is distinguishable from FedAvg here"


def conclusion(ended: Ended) -> list[str]:
    """Return what the race ends with, in lines."""
    place = "winner" if ended.has_won else "first on validation data"
    lines = [f"{place}: {ended.winner}"]
    if ended.equals:
        names = ", ".join(map(str, ended.equals))
        lines.append(f"within two standard errors of it on validation data: {names}")
    lines += gain_lines(ended)
    if ended.without_uploads is None:
        lines.append("no method that uploads nothing beside the model has finished")
    elif ended.without_uploads == ended.winner:
        lines.append(f"{winner_words(ended)} uploads nothing beside the model")
    else:
        lines.append(f"best of those that upload nothing beside the model: {ended.without_uploads}")
    return [*lines, *what_to_take(ended)]


def gain_line(where: str, gain: Difference) -> str:
    """Return a gain over FedAvg in a line: mean and interval."""
    low, high = gain.interval()
    ends = f"95 % interval {low:+.1f} to {high:+.1f} over {gain.covers}"
    return f"gain over FedAvg {where}: {gain.mean:+.1f} points, {ends}"


def winner_words(ended: Ended) -> str:
    """Return what the first on validation data is called."""
    return "the winner" if ended.has_won else str(ended.winner)


def why_no_gain_decides(ended: Ended) -> str:
    """Return which of the winner and FedAvg diverged, so that no gain decides; empty where none did."""
    of_winner = ended.seeds_of(ended.winner)
    if of_winner:
        what = "it" if ended.winner == ended.baseline else "its gain"
        return f"{of_winner}, so {what} does not count"
    if ended.baseline is not None and ended.baseline in ended.diverged:
        return f"{ended.seeds_of(ended.baseline)}, so {ended.winner} needs no gain over it"
    return ""


def gain_lines(ended: Ended) -> list[str]:
    """Return what the winner has over FedAvg, in lines."""
    lines = []
    no_gain_decides = why_no_gain_decides(ended)
    if ended.validated is not None:
        decides = "" if no_gain_decides else ", which decides"
        lines.append(gain_line(f"on validation data{decides}", ended.validated))
        if ended.tested is not None:
            by_seed = ", ".join(f"{gain:+.1f}" for gain in ended.gain_by_seed.values())
            lines.append(f"{gain_line('on the test set', ended.tested)} ({by_seed})")
        if no_gain_decides:
            lines.append(no_gain_decides)
        elif not ended.distinguishable:
            lines.append(NOBODY)
        elif ended.tested is not None and ended.tested.interval()[0] <= 0:
            lines.append("the test set is too small, or the seeds too few, to confirm the gain")
    elif no_gain_decides:
        lines.append(no_gain_decides)
    elif ended.winner.method == BASELINE:
        lines.append(f"{NOBODY}: FedAvg itself is the best")
    elif ended.baseline is None:
        lines.append(f"FedAvg has finished no run: {winner_words(ended)} is compared with nothing")
    else:
        lines.append(
            f"{winner_words(ended)} and FedAvg have fewer than two seeds in common, too few to compare them"
        )
    return lines


def what_to_take(ended: Ended) -> list[str]:
    """Return what diverged, whether the level is chance, and last of all what to take."""
    lines = []
    for candidate in ended.diverged:
        lines.append(f"{ended.seeds_of(candidate)}: a lower learning-rate may help")
    if ended.at_chance:
        lines.append(f"{ended.winner} is no better than chance: {ended.at_chance}")
    if ended.nothing_to_take:
        return [*lines, f"take none of them: {CHANCE_REMEDY}"]
    return [*lines, f"take {ended.take}"]
