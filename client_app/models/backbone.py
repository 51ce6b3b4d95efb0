"""Backbones: a published network without its head, and pretrained weights from a file."""

import hashlib
import io
import os
import pickle
import warnings
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from client_app.models.classifier import Classifier
from client_app.models.settings import ModelSettings
from data import SettingError, require
from data.files import FileStamp, stamp_of

TORCHVISION, TIMM = "torchvision:", "timm:"
WITHOUT = ("googlenet", "inception_v3")
"""Networks of torchvision that have other outputs in training."""
SAME_INDEX = "install torch and torchvision from the same index"
LARGEST_WEIGHTS = 4 * 2**30
"""Bytes of the largest file of weights: all of it is in memory while it is loaded."""


def is_backbone(name: str) -> bool:
    """Return whether `name` is a network that may begin with a file's weights."""
    return name.startswith((TORCHVISION, TIMM))


class Prepared(nn.Module):
    """Images as a backbone takes them: one channel three times, each side brought to `side` pixels, bilinear."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, images_B: Tensor) -> Tensor:
        images_B = images_B.expand(-1, 3, -1, -1)
        wanted = (self.side, self.side)
        if not self.side or images_B.shape[-2:] == wanted:
            return images_B
        return F.interpolate(images_B, wanted, mode="bilinear", antialias=True)


def backbone(name: str, classes: int, settings: ModelSettings) -> Classifier:
    """Return the network with a new head of `classes` outputs, on the default device.

    Its weights are the file's, or drawn; on the meta device there are none. Raises SettingError for a network that
    there is not, and weights that are not its own.
    """
    body, width, head = body_of(name)
    features = nn.Sequential(Prepared(settings.image_side), body)
    classifier = Classifier(features, nn.Linear(width, classes))
    if settings.weights and not classifier.head.weight.is_meta:
        load_weights(name, body, head, settings.weights, settings.weights_sha256)
    return classifier


def body_of(name: str) -> tuple[nn.Module, int, str]:
    """Return a network without its head, the number of its features, and how its head is called in its weights."""
    with torch.device("cpu"):  # some compute while they are made
        network = of_torchvision(name) if name.startswith(TORCHVISION) else of_timm(name)
    network = network.to(torch.get_default_device())
    linear_layers = {}
    for path, module in network.named_modules():
        if isinstance(module, nn.Linear):
            linear_layers[path] = module
    require(bool(linear_layers), "model", name, "has no linear head that could be replaced")
    path, head = linear_layers.popitem()  # the last one
    network.set_submodule(path, nn.Identity())
    return network, head.in_features, f"{path}."


def load_torchvision() -> Any:
    """Import torchvision's networks, which takes two seconds, and return the module torchvision.models.

    Processes that fork workers call it before, so that no worker imports it again.

    Raises:
        SettingError: torchvision is missing, or does not fit torch. Its standard build is for CUDA: beside torch's
            build for CPUs it raises RuntimeError (operator torchvision::nms does not exist).
    """
    try:
        return import_module("torchvision.models")
    except (ImportError, RuntimeError):
        rule = f"needs torchvision, which cannot be loaded beside torch {torch.__version__}"
        raise SettingError("model", f"{TORCHVISION}*", rule, remedy=SAME_INDEX) from None


def of_torchvision(name: str) -> nn.Module:
    """Return a whole network of torchvision, its weights drawn."""
    models = load_torchvision()
    names = models.list_models(module=models)
    chosen = name.removeprefix(TORCHVISION)
    rule = f"torchvision has no classifier of that name with one output; it has {', '.join(names)}"
    require(chosen in names and chosen not in WITHOUT, "model", name, rule)
    network: nn.Module = models.get_model(chosen, weights=None)
    return network


def of_timm(name: str) -> nn.Module:
    """Return a whole network of timm, its weights drawn."""
    require_timm(name)
    import timm

    network: nn.Module = timm.create_model(name.removeprefix(TIMM), pretrained=False)
    return network


def require_timm(name: str) -> None:
    """Raise SettingError where the package is missing, or has no such network of its own: others it would download."""
    remedy = "pip install 'fedskew[timm]'"
    require(find_spec("timm") is not None, "model", name, "needs the package timm", remedy)
    import timm

    network = name.removeprefix(TIMM)
    is_its_own = timm.is_model(network) and ":" not in network  # hf-hub:NAME is elsewhere
    require(is_its_own, "model", name, "timm has no network of that name")


@lru_cache
def normalization_of(name: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return mean and standard deviation of the channels that a network's published weights were trained with."""
    if name.startswith(TIMM):
        require_timm(name)
        import timm

        about = timm.get_pretrained_cfg(name.removeprefix(TIMM))
        if about is None:
            return None
        return tuple(about.mean), tuple(about.std)
    models = load_torchvision()
    chosen = name.removeprefix(TORCHVISION)
    if chosen not in models.list_models(module=models):
        return None
    published = getattr(models.get_model_weights(chosen), "DEFAULT", None)
    if published is None:
        return None
    preparation = published.transforms()
    return tuple(preparation.mean), tuple(preparation.std)


@lru_cache(maxsize=1)
def scratch(name: str) -> tuple[nn.Module, int, str]:
    """Return what `body_of` does, in eval mode, for shapes; whatever is drawn next does not depend on it."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        body, width, head = body_of(name)
    return body.eval(), width, head


def width_of(name: str) -> int:
    """Return the number of a network's features."""
    return scratch(name)[1]


@lru_cache
def check_images(name: str, shape: tuple[int, ...], side: int) -> None:
    """Raise SettingError for images of `shape`, brought to `side` where that is not 0, that the network cannot take."""
    channels = shape[0]
    height, width = side or shape[1], side or shape[2]
    described = f"{channels}x{height}x{width}"
    rule = f"takes images of one or three channels, not {described}"
    require(channels in (1, 3), "model", name, rule)

    body, features, _ = scratch(name)
    try:
        with torch.device("cpu"), torch.no_grad():
            image = torch.zeros(1, 3, height, width)
            made = tuple(body(image).shape)
    except Exception as error:
        rule = f"cannot take images of {described}: {error}"
        raise SettingError("model", name, rule, remedy="image-side resizes them") from error
    rule = f"its features have shape {made} for an image, not (1, {features}) as its head takes"
    require(made == (1, features), "model", name, rule)


# ---- a file's weights ------------------------------------------------------------------------------------------------


def check_weights(name: str, file: str) -> None:
    """Raise SettingError unless a file holds the network's weights; the same file is looked at once."""
    check_once(name, file, sha256_of(file))


@lru_cache
def check_once(name: str, file: str, digest: str) -> None:
    """Load a file of that sha256 into a network for shapes, see `load_weights`."""
    body, _, head = scratch(name)
    load_weights(name, body, head, file, digest)


def load_weights(name: str, body: nn.Module, head: str, file: str, sha256: str) -> None:
    """Load a file's tensors into `body`, those of the head left out.

    Raises SettingError naming the first tensor that is missing, has another shape, is not finite, or has no place, and
    as `read`.
    """
    tensors = {key: part for key, part in read(file, sha256).items() if not key.startswith(head)}
    for key, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise SettingError("weights", file, f"{key} is not finite")
    try:
        body.load_state_dict(tensors)
    except RuntimeError as error:  # its first line names the class, the second one the tensors
        reason = str(error).splitlines()[1].strip()[:200]
        raise SettingError("weights", file, f"are not those of {name}: {reason}") from error


def read(file: str, sha256: str = "") -> dict[str, Tensor]:
    """Return a file's tensors by name; what it may hold beside tensors is never run. Raises SettingError.

    The file is read once. With `sha256` its bytes must have that hash: what was compared before is what is loaded,
    whatever has become of the file in between.
    """
    content = content_of(file)
    here = hashlib.sha256(content).hexdigest() if sha256 else ""
    rule = f"has sha256 {here} now, and {sha256} when it was looked at: it has been replaced"
    require(here == sha256, "weights", file, rule)
    if file.endswith(".safetensors"):
        rule = "must be a file of safetensors"
    else:
        rule = "must be a .pth of tensors alone"
    try:
        if file.endswith(".safetensors"):
            from safetensors.torch import load

            loaded: Any = load(content)
        else:
            with warnings.catch_warnings(action="ignore"):
                stream = io.BytesIO(content)
                loaded = torch.load(stream, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        rule += "; it holds code, which is not run, or is none"
        raise SettingError("weights", file, rule) from error
    except Exception as error:  # a damaged file surfaces as anything
        reason = " ".join(str(error).split())[:200]
        raise SettingError("weights", file, f"{rule}: {reason}") from error
    if isinstance(loaded, dict):
        loaded = loaded.get("state_dict", loaded)  # as training scripts save it
    is_named = isinstance(loaded, dict) and bool(loaded)
    if not is_named or not all(isinstance(part, Tensor) for part in loaded.values()):
        raise SettingError("weights", file, f"{rule}, by name")
    return {str(name): tensor for name, tensor in loaded.items()}


def content_of(file: str) -> bytes:
    """Return a file's bytes. Raises SettingError for one that cannot be read, or of more than LARGEST_WEIGHTS."""
    try:
        with Path(file).open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            rule = f"has {size} bytes, and weights may have {LARGEST_WEIGHTS}"
            require(size <= LARGEST_WEIGHTS, "weights", file, rule)
            return stream.read(size)
    except OSError as error:
        raise SettingError("weights", file, f"cannot be read: {error.strerror}") from error


def sha256_of(file: str) -> str:
    """Return the sha256 of a file of weights, read once as long as it does not change. Raises SettingError."""
    return digest_of(file, stamp_of(Path(file)))


@lru_cache
def digest_of(file: str, stamp: FileStamp) -> str:
    """Return the sha256 of a file that has this stamp."""
    return hashlib.sha256(content_of(file)).hexdigest()
