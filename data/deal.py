"""The partition that the settings name, on the data that there are."""

import numpy as np

from data.dataset import Dataset
from data.partitions import (
    Indices,
    by_domain,
    classes_per_client,
    domain_parts,
    domain_shares,
    feddf,
    iid,
    lda,
    llt,
    quantity,
)
from data.random_draws import generator
from data.settings import DataSettings


def deal(settings: DataSettings, data: Dataset, train: Indices, seed: int) -> list[Indices]:
    """Return indices into `train`, one array a client; raises as the partition does."""
    labels_N, clients, draws = (
        data.train_labels[train],
        settings.clients,
        generator(seed, "partition"),
    )
    if settings.partition == "domains" and data.train_domains is not None:
        domains_N, domains = data.train_domains[train], len(data.domain_names)
        if settings.parts_per_domain:
            return domain_parts(labels_N, domains_N, domains, settings.parts_per_domain, draws)
        if settings.domain_percent < 100:
            return domain_shares(labels_N, domains_N, domains, settings.domain_percent, draws)
        return by_domain(domains_N, domains)
    if settings.partition == "pooled":
        return [np.arange(len(train), dtype=np.int64)]
    if settings.partition == "iid":
        return iid(labels_N, clients, draws)
    if settings.partition == "feddf":
        return feddf(labels_N, clients, settings.alpha, draws)
    if settings.partition == "llt":
        return llt(
            labels_N,
            clients,
            data.num_classes,
            settings.alpha,
            draws,
            settings.llt_form == "literal",
        )
    if settings.partition == "quantity":
        return quantity(len(train), clients, settings.alpha, draws, settings.min_samples)
    if settings.partition == "classes-per-client":
        return classes_per_client(
            labels_N, clients, data.num_classes, settings.classes_per_client, draws
        )
    return lda(labels_N, clients, settings.alpha, draws, settings.min_samples)
