"""The versions of all software that a run's numbers may depend on."""

import functools
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version

import torch

from client_app.process import code_version
from data.package_files import INSTALLED_AS_ONE, ROOT

PACKAGES = ("client_app", "data", "fedskew", "server_app", "strategies")


def versions() -> dict[str, str]:
    """Return what a number may depend on beside the settings."""
    return {
        "python": platform.python_version(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "code": code_version(*PACKAGES),
        **{package: installed(package) for package in ("fedskew", "flwr", "torch", "numpy", "ray")},
        "commit": commit(),
    }


@functools.cache
def installed(package: str) -> str:
    """Return a package's version, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@functools.cache
def commit() -> str:
    """Return the commit of the code, or "unknown" outside a checkout."""
    if INSTALLED_AS_ONE:
        # git would describe the user's own repository around the installed package.
        return "unknown"
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
