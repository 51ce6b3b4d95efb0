"""Runs that several files of tests export, trained once."""

import pytest


@pytest.fixture(scope="session")
def creff(tmp_path_factory, cache_of_the_session):
    """The folder of a finished CReFF run on digits."""
    from exported_models import CREFF, trained  # not before conftest.py above has imported flwr

    return trained(CREFF, tmp_path_factory.mktemp("creff"))


@pytest.fixture(scope="session")
def fedbn(tmp_path_factory, cache_of_the_session):
    """The folder of a finished FedBN run on domains, whose files lie in the folder of its results."""
    from exported_models import trained_on_domains

    return trained_on_domains(tmp_path_factory.mktemp("fedbn"))


@pytest.fixture
def no_drawings(monkeypatch):
    """A report's page without figures, which take seconds: for what stands in its text."""
    monkeypatch.setattr("fedskew.report.figures.figures", lambda document: {})
