"""Any Flower app at a site: it is run from the copy that the site approved, and every reply is checked by record.

With a table [app] in site.toml the federation's app is another one than FedSkew's. The FAB that comes with a run is
compared with the approved one by its hash and never unpacked. What runs is the copy that the site made of its own
approved FAB, and that copy is compared once more before a process imports it.
"""

import importlib
import shutil
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from flwr.app import Context, Message

from client_app.local_site import OWN_DATA, RunNotAllowed
from data import DataError
from site_agent.app_files import app_hash
from site_agent.config import AppPolicy, Site
from site_agent.pool import leaving
from site_agent.run_approval import check_app_signed

SAMPLES = "num-examples"
"""The metric by which flwr's strategies weigh a reply."""
COUNTED = ("train", "evaluate")
"""The types of messages whose replies have to state SAMPLES."""


class InstalledApp:
    """The approved app of a site, imported by the first message that a process gets."""

    def __init__(self, site: Site, files: Mapping[str, bytes]) -> None:
        """Write the approved app's files, by name, below the site's state, in place of what is there.

        Raises DataError for an app without a ClientApp.
        """
        self.site = site
        self.folder = site.state / "app"
        self.reference = client_app_of(files, str(self.folder))
        self.app: Any = None
        if self.folder.exists():
            shutil.rmtree(self.folder)
        for name, content in files.items():
            file = self.folder / name
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.write_bytes(content)

    def __call__(self, message: Message, context: Context) -> Message:
        """Return the app's reply.

        Raises:
            RunNotSigned: the run is not signed with federation.toml's run-key; the app is not imported then.
            RunNotAllowed: a reply that must not leave, or a copy that was changed.
        """
        site = self.site
        assert site.app is not None
        check_app_signed(site.agreement, site.name, context.run_config)
        if self.app is None:
            self.app = self.load()
        of_site = {OWN_DATA: site.data.partition(":")[2], **site.app.node_config}
        context.node_config = {**context.node_config, **of_site}
        reply: Message = self.app(message, context)
        check_reply(site.app, reply, message)
        return reply

    def load(self) -> Any:
        """Import the ClientApp. Raises RunNotAllowed unless the copy holds the approved files and nothing else."""
        files = {}
        for file in sorted(self.folder.rglob("*")):
            if not file.is_dir():
                name = file.relative_to(self.folder).as_posix()
                files[name] = file.read_bytes()
        if app_hash(files) != self.site.agreement.app:
            raise RunNotAllowed("app", f"the copy in {self.folder} is not what was approved")
        check_module_names(files, self.folder)
        sys.dont_write_bytecode = True  # the copy stays as it was approved
        sys.path.insert(0, str(self.folder))
        module, _, name = self.reference.partition(":")
        return getattr(importlib.import_module(module), name)


def client_app_of(files: Mapping[str, bytes], where: str) -> str:
    """Return the reference MODULE:NAME of an app's ClientApp. Raises DataError for an app without one."""
    try:
        table = tomllib.loads(files["pyproject.toml"].decode())
        reference = str(table["tool"]["flwr"]["app"]["components"]["clientapp"])
    except (LookupError, ValueError, TypeError):
        reference = ""
    module, _, name = reference.partition(":")
    path = module.replace(".", "/")
    is_in_app = f"{path}.py" in files or f"{path}/__init__.py" in files
    if not name or not is_in_app:
        rule = "must name MODULE:NAME of a module in the app"
        raise DataError(rule, where=f"{where}: pyproject.toml", key="clientapp")
    return reference


def check_module_names(files: Mapping[str, bytes], folder: Path) -> None:
    """Raise DataError for an app's module that an import would not find, because another one has its name here.

    A clone of FedSkew has packages with common names, such as `data`; an installed wheel has `fedskew` alone.
    """
    modules = [file for file in files if file.endswith(".py")]
    for name in sorted({file.partition("/")[0].removesuffix(".py") for file in modules}):
        module = sys.modules.get(name)
        is_taken = module is not None or name in sys.stdlib_module_names
        loaded_from = Path(getattr(module, "__file__", None) or "")
        if is_taken and folder not in loaded_from.parents:
            rule = f"has the name of a module that is loaded here before the app's {name}"
            remedy = "install FedSkew as a wheel, or rename the app's module"
            raise DataError(rule, where=str(folder), key=name, remedy=remedy)


def check_reply(policy: AppPolicy, reply: Message, message: Message) -> None:
    """Check the records of a reply to a message.

    Raises:
        RunNotAllowed: one that the policy does not name, too many bytes, too large a norm, or too few samples. Its
            `permission` is the policy's key.
    """
    if reply.has_error():
        reason = "the app answers with an error of its own, whose text may say anything"
        raise RunNotAllowed("arrays", reason)
    content = reply.content
    check_record_names("arrays", content.array_records, policy.arrays)
    check_record_names("metrics", content.metric_records, policy.metrics)
    check_record_names("configs", content.config_records, policy.configs)
    rows = leaving(reply, message)
    size = sum(row["bytes"] for row in rows)
    if policy.max_bytes and size > policy.max_bytes:
        reason = f"the reply has {size} bytes, and at most {policy.max_bytes} may leave"
        raise RunNotAllowed("max-bytes", reason)
    for row in rows:
        # A norm that is no number is not within the limit.
        if policy.max_norm and "norm" in row and not row["norm"] <= policy.max_norm:
            norm = f"the norm of {row['name']!r} is {row['norm']:.6g}"
            raise RunNotAllowed("max-norm", f"{norm}, and max-norm = {policy.max_norm:g}")
    if message.metadata.message_type.partition(".")[0] in COUNTED:
        check_samples(policy, reply)


def check_record_names(key: str, names: Iterable[str], allowed: Sequence[str]) -> None:
    """Raise RunNotAllowed for a record that no pattern of the policy's `key` allows."""
    for name in names:
        if not any(fnmatchcase(name, pattern) for pattern in allowed):
            patterns = ", ".join(allowed) or "an empty list"
            raise RunNotAllowed(key, f"the record {name!r} is none of {patterns}")


def check_samples(policy: AppPolicy, reply: Message) -> None:
    """Raise RunNotAllowed unless a reply has enough samples by its own metrics."""
    records = reply.content.metric_records.values()
    numbers = [record[SAMPLES] for record in records if SAMPLES in record]
    if not numbers:
        raise RunNotAllowed("min-samples", f"the reply does not state {SAMPLES}")
    for samples in numbers:
        if not isinstance(samples, int | float) or not samples >= policy.min_samples:
            rule = f"{SAMPLES} is {samples}, and must be at least {policy.min_samples}"
            raise RunNotAllowed("min-samples", rule)
