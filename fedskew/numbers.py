"""Numbers as the workbench writes them: shares in percent, bytes, durations."""

import math

from rich.filesize import decimal


def percent(value: float | None, digits: int = 1) -> str:
    """Return a share in percent, or a dash where there is none: a class without samples, or an AUROC without pairs."""
    return "-" if value is None or math.isnan(value) else f"{100 * value:.{digits}f}"


def in_bytes(count: float) -> str:
    """Return a number of bytes in the unit that suits it, in powers of ten."""
    return decimal(round(count), precision=2)


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 100 * 3600 else f"{seconds / 86400:.1f} days"


def p_value(p: float) -> str:
    """Return a p-value with three decimals; one that would read 0.000 as "< 0.001"."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
