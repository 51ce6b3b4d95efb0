"""Hatchling's hook: a wheel is built of the one package that scripts/one_package.py writes."""

import runpy
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class OnePackage(BuildHookInterface):  # type: ignore[type-arg]
    """Puts `fedskew`, with the other packages inside, into the wheel. An editable install is the clone itself."""

    folder: str | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the package and name its folder as the wheel's content."""
        if version == "editable":
            return
        self.folder = tempfile.mkdtemp(prefix="fedskew-wheel-")
        script = runpy.run_path(str(Path(self.root, "scripts", "one_package.py")))
        script["write"](Path(self.folder))
        build_data["force_include"][str(Path(self.folder, "fedskew"))] = "fedskew"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was written."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
