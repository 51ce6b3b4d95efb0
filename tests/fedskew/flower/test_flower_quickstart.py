"""examples/flower-quickstart: each method is a patch of at most ten lines, and trains from an installed wheel.

The app lies beside modules of the user's that have the names of FedSkew's packages in a clone.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from flower_command import flwr_run

ROOT = Path(__file__).resolve().parents[3]
APP = ROOT / "examples" / "flower-quickstart"
PATCHES = sorted((APP / "patches").glob("*.diff"))
RUNNER = """
import importlib, random, sys
from pathlib import Path
import torch
from fake_grid import FakeGrid
from flwr.app import Context, RecordDict

torch.set_num_threads(1)
for folder in sys.argv[1:]:
    for name in [name for name in sys.modules if name.split(".")[0] in ("quickstart", "data", "strategies")]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    import data, strategies
    assert data.OWNER == strategies.OWNER == "user"
    server, client = (importlib.import_module(f"quickstart.{side}_app") for side in ("server", "client"))
    config = {"num-server-rounds": 2, "fraction-evaluate": 1.0, "local-epochs": 1, "learning-rate": 0.05,
              "batch-size": 32, "seed": 0, "model-file": str(Path(folder, "model.pt"))}
    random.seed(0)
    grid = FakeGrid(client.app, 4, config)
    server.app(grid, Context(1, 1, {}, RecordDict(), config))
    assert not grid.errors, grid.errors
    net = importlib.import_module("quickstart.task").Net()
    net.load_state_dict(torch.load(config["model-file"]))
    print("TRAINED", Path(folder).name, flush=True)
    sys.path.remove(folder)
    sys.path_importer_cache.clear()
"""


def patched(patch: Path | None, folder: Path) -> Path:
    """Copy the app to `folder`, apply a patch, and return the folder."""
    shutil.copytree(APP, folder)
    if patch is not None:
        command = ["git", "apply", str(patch)]
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
        subprocess.run(command, cwd=folder, env=environment, check=True)
    (folder / "data").mkdir()
    (folder / "data" / "__init__.py").write_text("OWNER = 'user'\n")
    (folder / "strategies.py").write_text("OWNER = 'user'\n")
    return folder


def train_every_patch(python: Path, folder: Path) -> None:
    """Train the app as it is, and with each patch, with a Python in which FedSkew is installed."""
    assert {"fedshift", "creff", "fedbn", "iwds", "scaffold"} <= {patch.stem for patch in PATCHES}
    apps = [patched(None, folder / "fedavg")]
    apps += [patched(patch, folder / patch.stem) for patch in PATCHES]
    (folder / "runner.py").write_text(RUNNER)
    shutil.copy(ROOT / "tests" / "fake_grid.py", folder)
    environment = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    command = [str(python), "-W", "ignore", "runner.py", *map(str, apps)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert re.findall(r"TRAINED (\S+)", done.stdout) == [app.name for app in apps]


@pytest.mark.slow
def test_every_patch_trains_in_a_fresh_environment_with_the_wheel(
    fresh_environment: Path, tmp_path: Path
) -> None:
    """Its dependencies are those of this environment; FedSkew is the built wheel and no clone."""
    where = "import fedskew; print(fedskew.__file__)"
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(fresh_environment), "-c", where]
    found = subprocess.check_output(command, cwd=tmp_path, env=alone, text=True)
    assert found.startswith(str(fresh_environment.parents[1]))
    train_every_patch(fresh_environment, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["creff"])
def test_the_app_runs_on_ray_with_ten_clients(name: str, tmp_path: Path) -> None:
    """`flwr run` as the README states it, with a SuperLink of the test's own."""
    app = patched(APP / "patches" / f"{name}.diff", tmp_path / "quickstart-app")
    model = tmp_path / "model.pt"
    # a clone is on the path here, whose packages the user's own `data` would hide
    shutil.rmtree(app / "data")
    (app / "strategies.py").unlink()
    words = ["--federation-config", "num-supernodes=10 client-resources-num-cpus=1"]
    config = f'num-server-rounds=2 local-epochs=1 model-file="{model}"'
    output = flwr_run(tmp_path / "neutral", app, *words, "--run-config", config, path=str(ROOT))
    assert model.is_file() and "QUICKSTART accuracy" in output, output[-3000:]
