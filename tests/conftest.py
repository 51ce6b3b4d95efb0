"""What holds for every test: one thread, and nobody's real cache, flwr home or SuperLink."""

import logging
import multiprocessing
import signal
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from built_wheel import fresh_environment  # noqa: F401
from command_line import fedskew  # noqa: F401
from flower_command import own_superlink
from running_federation import federation, federation_of_the_session  # noqa: F401


def pytest_configure(config: pytest.Config) -> None:
    """Import flwr, and torch with it, before any test does; a process that hands tests out to others waits for none."""
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        return
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # flwr's import of typer uses what click deprecates
        import flwr.clientapp
        import flwr.serverapp  # noqa: F401


TOGETHER = {
    "test_running_attacks.py": "federation",
    "test_running_federation.py": "federation",
    "test_ray.py": "ray",
}
"""By file of slow tests: the group that shares what takes long to start."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist loadgroup let one process run a group's tests. xdist's own mark has no effect with pytest 9.2."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0].rpartition("/")[2]
            return TOGETHER.get(file, nodeid)

    return ByGroup(config, log)


SLOW_TIMEOUT = 1800.0
"""Seconds for a slow test. A shared machine can be three times as slow as usual."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests more time than the fast ones, whose limit is in pyproject.toml."""
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def level_of_flwrs_log() -> Iterator[None]:
    """Undo what a command line in this process does to flwr's log: it hides warnings, which other tests read."""
    log = logging.getLogger("flwr")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture(scope="session", autouse=True)
def children_take_an_interrupt() -> None:
    """A shell's background job ignores Ctrl-C, one of nohup the end of the terminal, and so would what tests start."""
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.fixture(scope="session", autouse=True)
def torch_is_imported_once(cache_of_the_session: None) -> None:
    """Children of this process are forked from one that has what they need, as the engines' are from one with torch."""
    from fedskew.signals import blocked

    preload = ["server_app.app", "client_app.app", "fedskew.experiments.plan"]
    multiprocessing.get_context("forkserver").set_forkserver_preload(preload)
    with blocked():
        forkserver.ensure_running()


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("user-cache")))
        # By default `flwr run` joins whatever SuperLink listens on a fixed port, of any program on the machine.
        for name, value in own_superlink(tmp_path_factory.mktemp("flwr-home")).items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def forget_runtimes() -> Iterator[None]:
    """Sites of other tests have the same agreement, and other states."""
    from client_app.runtime import site_runtime

    site_runtime.cache_clear()
    yield
    site_runtime.cache_clear()


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Any]:
    """Run an experiment into a folder of the test; `results` names another one, `grid` says how to run the clients."""
    from in_process import experiment

    def run_once(results: str = "results", **more: Any) -> Any:
        return experiment(tmp_path / results, **more)

    return run_once
