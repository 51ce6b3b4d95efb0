"""An app runs through Flower's own command in a SuperLink of its own, and no SuperLink of anybody else's is reached."""

import json
import os
import re
from pathlib import Path

import pytest
from flower_command import flwr_run, own_superlink

import fedskew
from fedskew.engines import APP
from fedskew.engines.processes import marked

SMALL = {"rounds": 1, "clients": 2, "model": "mlp-bn", "train-images": 60, "test-images": 40,
         "local-steps": 2, "min-samples": 5}  # fmt: skip
PORT = "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"


def test_what_a_test_starts_looks_for_no_superlink_where_another_program_has_one(
    tmp_path: Path,
) -> None:
    """`flwr run` joins what listens on port 39091, unless the environment names another.

    conftest.py sets both for whatever a test starts, whoever starts it; `flwr_run` once more for each run. What else
    starts flwr (deploy/stock_nodes.py, fedskew/federation/service.py, site_agent/service.py) writes an address
    with a port of its own into flwr's config.toml, or gives it to flwr's processes.
    """
    from flwr.supercore.utils import get_flwr_home

    assert get_flwr_home() == Path(os.environ["FLWR_HOME"])
    assert Path.home() not in get_flwr_home().parents
    environments = [os.environ, own_superlink(tmp_path / "a"), own_superlink(tmp_path / "b")]
    ports = {environment[PORT] for environment in environments}
    assert len(ports) == 3 and "39091" not in ports
    assert len({environment["FLWR_HOME"] for environment in environments}) == 3


@pytest.mark.slow
def test_a_run_of_flower_s_command_has_the_hash_of_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "flwr"
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in SMALL.items())
    output = flwr_run(folder, APP, "--run-config", config)
    (summary,) = (folder / "fedskew-results").glob("*/summary.json")
    assert f"finished: {summary.parent}" in re.sub(r"\s+", " ", output)
    alone = fedskew.run({**SMALL, "results": str(tmp_path / "alone")})
    assert json.loads(summary.read_text())["hash"]["all"] == alone.hash
    assert not marked(folder), "a process is left"
