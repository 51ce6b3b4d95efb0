"""What may leave a site: asked before round 1, and held at every message. In a simulation there is no policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from client_app.client import Report, Variant
from client_app.site import NotAllowed, Site
from client_app.state import State, difference, norm

BY_CLASS = ("class-counts", "class-statistics", "head-gradients")
"""Permissions for what is told class by class."""
QUESTION = "readiness"
"""The question whether a site can do its part of a run, which every site is asked before round 1."""
READY: State = {"ready": torch.ones(())}


@dataclass(frozen=True)
class Policy:
    """A site's rules, with what they are about. Every check raises NotAllowed for what has to stay."""

    site: Site
    variants: Sequence[Variant]
    """Of the run."""
    counts_C: Tensor
    """(C,): training samples of each class."""
    tested: int
    """Test samples; subjects, where samples are parts of one."""

    def check_ready(self) -> None:
        """Look at all that the run will ask for; whatever has to stay is named at once."""
        needed = {
            "model",
            "scores",
            *(variant.reveals for variant in self.variants if variant.reveals),
        }
        if kept := sorted(needed - self.site.allow):
            raise NotAllowed(", ".join(kept))
        for permission in sorted(needed):
            self.check_counts(permission)
        self.check_scores()

    def check_update(self, start: State, report: Report) -> None:
        """Look at an update of `start`, and at its uploads."""
        self.check_permission("model")
        self.check_uploads(report.uploads)
        moved, most = norm(difference(report.shared, start)), self.site.max_norm
        if most and not moved <= most:
            raise NotAllowed("model", f"the update's norm is {moved:.6g}, and max-norm = {most:g}")

    def check_uploads(self, uploads: Mapping[str, State]) -> None:
        """Look at uploads, or answers, by variant; an unknown one is not allowed under any name."""
        reveals = {variant.name: variant.reveals for variant in self.variants}
        for name in sorted(uploads):
            self.check_permission(reveals.get(name) or name)
            self.check_counts(reveals[name])

    def check_scores(self) -> None:
        """Look at scores on the test set."""
        self.check_permission("scores")
        if self.tested < (least := self.site.min_test_samples):
            raise NotAllowed(
                "scores", f"{self.tested} test samples, and min-test-samples = {least}"
            )

    def check_counts(self, permission: str) -> None:
        """Look at what is told class by class: no class held may have too few samples."""
        fewest = min((int(count) for count in self.counts_C.tolist() if count), default=0)
        if permission in BY_CLASS and fewest < (least := self.site.min_class_samples):
            raise NotAllowed(
                permission, f"a class has {fewest} samples, and min-class-samples = {least}"
            )

    def check_permission(self, permission: str) -> None:
        """Look for the permission in the site's file."""
        if permission not in self.site.allow:
            raise NotAllowed(permission)
