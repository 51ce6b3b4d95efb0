"""Commands that train nothing: each a process of its own, beside one that imports torch and one that does nothing.

Before the lists did without torch `fedskew list methods` took 1.36 times importing torch; the goal is 0.4 of that.
The goals of a plan, a report and a site's check are in seconds; the ratios' goals are those of a machine where that
import takes three. `fedskew data check` reads a folder of photographs, beside decoding the same files and nothing else.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.figures import Row, alternate, figure, seconds

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "deploy"))
from local_federation import ROOT, LocalFederation

LIST_GOAL, PLAN_GOAL, REPORT_GOAL, SITE_GOAL, DATA_GOAL = 0.54, 1.67, 0.67, 1.0, 1.5
IMPORT = "import torch"
REFUSED = "fedskew run --set metod=fedavg"
PLAN = "fedskew run creff-table1 --dry-run"
REPORT = "fedskew report"
SITE_CHECK = "fedskew-site check"
GOALS = {
    "fedskew list methods": LIST_GOAL,
    "fedskew --help": LIST_GOAL,
    REFUSED: LIST_GOAL,
    PLAN: PLAN_GOAL,
    REPORT: REPORT_GOAL,
    SITE_CHECK: SITE_GOAL,
}
"""By command, its goal in times of importing torch."""
SECONDS = {PLAN: 5.0, REPORT: 2.0, SITE_CHECK: 3.0}
"""By command, its goal in seconds."""
IMAGES, SIDE = 10_000, 64
DECODE = """
import sys
from pathlib import Path
import numpy
from PIL import Image
for file in Path(sys.argv[1]).rglob("*.png"):
    numpy.asarray(Image.open(file).convert("RGB"))
"""


def python(words: Sequence[str], folder: Path = ROOT, status: int = 0) -> None:
    """Run a Python process in a folder. Raises RuntimeError when it ends with another status."""
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=folder
    )
    if done.returncode != status:
        raise RuntimeError(f"{' '.join(words)} ends with {done.returncode}: {done.stderr[-600:]}")


def site_folder(work: Path) -> Path:
    """Return the folder of a site of a new federation, approved and ready to be checked."""
    federation = LocalFederation(work)
    federation.prepare("digits", 2)
    return next(iter(federation.places.values()))


def save_images(folder: Path) -> None:
    """Write a folder of images as PNG files, one folder for each class and split."""
    draw = np.random.default_rng(0)
    for number in range(IMAGES):
        split = "test" if number % 10 == 0 else "train"
        place = folder / split / f"class-{number // 10 % 10}"
        place.mkdir(parents=True, exist_ok=True)
        # Blocks of one colour, so that a file is as large as a photograph's.
        blocks = draw.integers(0, 256, (SIDE // 4, SIDE // 4, 3), dtype=np.uint8)
        pixels = blocks.repeat(4, axis=0).repeat(4, axis=1)
        Image.fromarray(pixels).save(place / f"{number}.png")


def actions_in(work: Path) -> dict[str, Callable[[], None]]:
    """Return what to run by name; make the results and the site that the commands read."""
    results = ["--results", str(work / "results")]
    python(["-m", "fedskew", "run", "demo", *results])
    actions: dict[str, Callable[[], None]] = {}
    for name in GOALS:
        program, *words = name.split()
        module = {"fedskew": "fedskew", "fedskew-site": "site_agent"}[program]
        actions[name] = partial(python, ["-m", module, *words])
    actions[REFUSED] = partial(actions[REFUSED], status=2)
    actions[REPORT] = partial(python, ["-m", *REPORT.split(), *results])
    actions[SITE_CHECK] = partial(actions[SITE_CHECK], folder=site_folder(work / "federation"))
    actions[IMPORT] = partial(python, ["-c", "import torch"])
    actions["python -c pass"] = partial(python, ["-c", "pass"])
    return actions


def rows() -> Iterator[Row]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory(prefix="fedskew-benchmark-") as temporary:
        work = Path(temporary)
        actions = actions_in(work)
        times = dict(zip(actions, alternate(*actions.values(), measurements=9), strict=True))
        for name, goal in GOALS.items():
            yield figure(f"`{name}` / `{IMPORT}`", times[name], times[IMPORT], goal)

        images = work / "images"
        save_images(images)
        check = partial(python, ["-m", "fedskew", "data", "check", str(images)])
        decode = partial(python, ["-c", DECODE, str(images)])
        checking, decoding = alternate(check, decode)
    title = f"`fedskew data check` of {IMAGES:,} images"
    yield figure(f"{title} / decoding them", checking, decoding, DATA_GOAL)
    for name, measured in times.items():
        yield seconds(f"`{name}`", measured, SECONDS.get(name))
    yield seconds(title, checking)
