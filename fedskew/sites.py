"""What clients are called in reports, exports and experiments.yaml."""

from collections.abc import Sequence


def site_names(clients: Sequence[str]) -> list[str]:
    """Return the sites' names, of the clients as settings.json has them.

    The domain where it is one client's alone, else DOMAIN-NUMBER; the number where there are no domains.
    """
    numbers, domains = (
        zip(*(client.partition(" ")[::2] for client in clients), strict=True)
        if clients
        else ((), ())
    )
    return [
        domain if domain and domains.count(domain) == 1 else f"{domain}-{number}".lstrip("-")
        for number, domain in zip(numbers, domains, strict=True)
    ]
