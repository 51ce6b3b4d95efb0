"""The load generator of benchmarks/scaling.py: light sites, with real SuperLink and gateway."""

import gc
import importlib
from pathlib import Path

import pytest

from deploy.local_federation import fedskew

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
# The coordinator's commands run in this process, and leave their connections to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_light_sites_train_as_a_rehearsal_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT / "deploy"))
    scaling = importlib.import_module("benchmarks.scaling")
    federation = scaling.LightFederation(tmp_path)
    words = ["--sites", "6", "--set", "partition=iid"]
    fedskew("data", "export-sites", "digits", federation.sites, *words)
    federation.found()
    try:
        with federation.at_work():
            trained = federation.run([*scaling.WORDS, "rounds=2"])
            assert set(scaling.coordinator(federation.folder)) >= {"gateway", "SuperLink"}
        assert trained["hash"] == federation.rehearse([*scaling.WORDS, "rounds=2"])["hash"]
    finally:
        gc.collect()  # closes connections while the test's filters of warnings are in force
