"""The exception for a broken rule of a method's contract."""


class ContractViolation(Exception):
    """A rule of the contract that a method breaks."""


def keep(holds: bool, what: str) -> None:
    """Raise ContractViolation unless `holds`."""
    if not holds:
        raise ContractViolation(what)
