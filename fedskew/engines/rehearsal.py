"""A rehearsal: all sites of a federation in one process, for comparison with the deployment's hash."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from data.agreement import Agreement, as_flower_has_it
from fedskew.engines.local import LocalGrid
from site_agent.config import Site
from site_agent.data_view import install


@dataclass(frozen=True)
class Node:
    """A node as flwr's Grid lists it."""

    node_id: int
    public_key: bytes


class RehearsalGrid(LocalGrid):
    """One node per site, each with the public key that the agreement names; all run in this process."""

    def __init__(
        self,
        sites: Mapping[int, Site],
        agreement: Agreement,
        faithful: bool = False,
    ) -> None:
        super().__init__(faithful=faithful)
        self.sites = sites
        self.nodes = []
        for number, site in enumerate(agreement.sites):
            if number in sites:
                self.nodes.append(Node(number + 1, as_flower_has_it(site.key)))

    def __enter__(self) -> "RehearsalGrid":
        super().__enter__()
        install(self.sites, signed_runs=False)
        return self

    def __exit__(self, *error: object) -> None:
        install({})
        super().__exit__(*error)

    def get_node_ids(self) -> Iterable[int]:
        """Return the sites' nodes."""
        return [node.node_id for node in self.nodes]

    def get_nodes(self) -> Iterable[Node]:  # type: ignore[override]  # flwr's own holds what only a SuperLink knows
        """Return the sites' nodes with their keys."""
        return self.nodes
