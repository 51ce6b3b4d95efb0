"""What became of a fault, and the comparison that every row ends with."""

from dataclasses import dataclass, field

from local_federation import Job

from faults.stage import Stage

SLOW = "local-epochs=20"
"""A training that can be met: some seconds."""


@dataclass
class TrialResult:
    """What became of a fault."""

    seconds: float
    """Until everything was at work again, or the run went on."""
    seen: str
    problems: list[str] = field(default_factory=list)

    def expect(self, holds: bool, problem: str) -> None:
        """Note a problem where something does not hold."""
        if not holds:
            self.problems.append(problem)


def same(
    stage: Stage,
    result: TrialResult,
    job: Job,
    name: str,
    *words: str,
    everybody: bool = True,
) -> TrialResult:
    """Compare the run's hash with that of the run in one process in which the same sites miss the same rounds."""
    trained = job.finish()
    absent = {
        record["round"]: set(range(len(stage.names))) - set(record["clients"])
        for record in job.records()
    }
    missed = sorted(round for round, sites in absent.items() if sites)
    result.expect(not (everybody and missed), f"rounds {missed} were without a site")
    if missed and not everybody:
        names = sorted(stage.names[site] for site in set().union(*absent.values()))
        result.seen += f", rounds {missed} without {', '.join(names)}"
    twin = stage.twin(job, name, *words)
    equal = trained["hash"]["all"] == twin["hash"]["all"]
    result.expect(equal, f"hash {trained['hash']['all']}, and {twin['hash']['all']} in one process")
    result.problems += stage.leftovers(job)
    return result
