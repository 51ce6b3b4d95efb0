"""How a broken rule of a method's contract is told: by an exception with the rule."""


class ContractViolation(Exception):
    """A rule of the contract that a method breaks."""


def keep(holds: bool, what: str) -> None:
    """Raise ContractViolation unless `holds`."""
    if not holds:
        raise ContractViolation(what)
