"""What settings of data are resolved to: classes, shape, normalization, clients; and which cannot be."""

import pytest

from data import DataError, DataSettings, SettingError, load, resolve
from data.readers.catalog import KNOWN


@pytest.mark.parametrize(
    ("dataset", "mean", "std"),
    [
        ("cifar10", "0.4914,0.4822,0.4465", "0.2023,0.1994,0.201"),
        ("cinic10", "0.4789,0.4723,0.4305", "0.2421,0.2383,0.2587"),
        ("imagenet-lt", "0.485,0.456,0.406", "0.229,0.224,0.225"),
        ("mnist", "0.1307", "0.3081"),
        ("fashion-mnist", "0.286", "0.353"),
        ("svhn", "0.5,0.5,0.5", "0.5,0.5,0.5"),
        ("domains:mnist,usps", "0.5,0.5,0.5", "0.5,0.5,0.5"),
        ("office-dslr", "0.0,0.0,0.0", "1.0,1.0,1.0"),
        ("domainnet", "0.0,0.0,0.0", "1.0,1.0,1.0"),
        ("pacs", "0.0,0.0,0.0", "1.0,1.0,1.0"),
        ("abide", "0.0", "1.0"),
        ("digits-scanners", "0.5", "0.5"),
    ],
)
def test_normalization_constants(dataset, mean, std):
    resolved = resolve(DataSettings(dataset))
    assert (resolved.mean, resolved.std) == (mean, std)


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        ({}, {"partition": "lda", "clients": 10, "classes": "0,1,2,3,4,5,6,7,8,9", "input_shape": "1x8x8"}),
        ({"dataset": "domains:mnist,usps,mnist-m"}, {"partition": "domains", "clients": 3, "input_shape": "3x28x28"}),
        ({"dataset": "abide"}, {"partition": "domains", "clients": 4, "input_shape": "6105"}),
        ({"dataset": "digits-scanners", "parts_per_domain": 3}, {"clients": 12}),
        ({"dataset": "mnist", "input_shape": "3x32x32"}, {"mean": "0.1307,0.1307,0.1307"}),
        ({"dataset": "cifar10", "input_shape": "1x32x32"}, {"mean": "0.4734"}),
        ({"partition": "pooled"}, {"clients": 1}),
        ({"dataset": "digits-3-8", "classes": "2"}, {"classes": "3,8"}),
    ],
)  # fmt: skip
def test_resolving_fills_in_everything_and_only_once(given, resolved):
    once = resolve(DataSettings(**given))
    assert {key: getattr(once, key) for key in resolved} == resolved
    assert resolve(once) == once


OWN = {"dataset": "npz:x", "classes": "2", "input_shape": "1x8x8"}
FILES = {**OWN, "dataset": "folder:x"}
TWO = {"dataset": "domains:mnist,usps"}
REFUSED = [
    ("dataset", {"dataset": "fashon-mnist"}, {"dataset": "fashion-mnist"}),
    ("dataset", {"dataset": "domains:mnist,cifar10"}, TWO),
    ("partition", {**TWO, "partition": "lda"}, {**TWO, "partition": "pooled"}),
    ("clients", {**TWO, "clients": 3}, {**TWO, "clients": 2}),
    ("imbalance-factor", {**TWO, "imbalance_factor": 10}, {"imbalance_factor": 10}),
    ("largest-class", {**TWO, "largest_class": 10}, {"largest_class": 10}),
    ("train-images", {"train_images": 100, "largest_class": 10}, {"train_images": 100}),
    ("clients", {"partition": "llt", "clients": 15}, {"partition": "llt", "clients": 20}),
    ("test-fold", {"dataset": "abide", "test_fold": 5}, {"dataset": "abide", "test_fold": 4}),
    ("window-stride", {"window_stride": 2}, {"dataset": "abide", "window_stride": 2}),
    ("pixel-range", {"pixel_range": "0,1"}, {**OWN, "pixel_range": "0,1"}),
    ("labels", {**OWN, "labels": "BodyPartExamined"}, OWN),
    ("classes", {"classes": "9"}, {"classes": "10"}),
    ("classes", {**OWN, "classes": "a,b,a"}, {**OWN, "classes": '"a, a",b'}),
    ("classes", {**OWN, "classes": "1"}, {**OWN, "classes": "2"}),
    ("classes", {**OWN, "classes": '"a"b,c'}, OWN),
    ("classes", {**OWN, "classes": "9" * 5000}, OWN),
    ("input-shape", {"input_shape": "28x28"}, {"input_shape": "1x28x28"}),
    ("input-shape", {"input_shape": "4x8x8"}, {"input_shape": "3x8x8"}),
    ("input-shape", {**OWN, "input_shape": "1x10000x10001"}, {**OWN, "input_shape": "1x10000x10000"}),
    ("input-shape", {**OWN, "input_shape": f"1x1x{'9' * 5000}"}, OWN),
    ("clients", {"clients": 1_000_001}, {"clients": 1_000_000}),
    ("mean", {"mean": "a"}, {"mean": "0"}),
    ("mean", {"mean": "1,2"}, {"mean": "1,2,3", "input_shape": "3x8x8"}),
    ("std", {"std": "0"}, {"std": "0.1"}),
    ("columns", {"columns": "label"}, {**FILES, "columns": "label=x"}),
    ("columns", {**FILES, "columns": "ignore="}, {**FILES, "columns": "patient="}),
    ("columns", {"columns": "ignore=a,a"}, {**FILES, "columns": "ignore=a,b"}),
    ("columns", {"columns": "label=a,ignore=a"}, {**FILES, "columns": "label=a,ignore=b"}),
]  # fmt: skip


@pytest.mark.parametrize(("key", "given", "control"), REFUSED)
def test_settings_that_cannot_be_are_refused_by_their_key(key, given, control):
    with pytest.raises(SettingError) as caught:
        resolve(DataSettings(**given))
    assert caught.value.key == key
    resolve(DataSettings(**control))


@pytest.mark.parametrize(
    ("columns", "roles", "ignored"),
    [
        ("ignore=a,ignore=b,label=d", {"label": "d"}, ("a", "b")),
        ('ignore=a,"b, c",site=s', {"site": "s"}, ("a", "b, c")),
        ('"label=finding, final", "site=ward"', {"label": "finding, final", "site": "ward"}, ()),
    ],
)
def test_columns_names_roles_and_what_to_leave_out(columns, roles, ignored):
    settings = DataSettings(columns=columns)
    assert (settings.column_names, settings.ignored_columns) == (roles, ignored)


def test_data_that_are_not_there_are_refused_with_how_to_get_them(tmp_path):
    for name, known in KNOWN.items():
        if known.layout == "scikit-learn":
            continue
        way = "download = true" if known.torchvision_class else known.how
        with pytest.raises(DataError) as caught:
            load(DataSettings(name, str(tmp_path), download=not known.torchvision_class))
        assert caught.value.where == str(tmp_path) and way in caught.value.rule


def test_a_failing_download_is_a_refusal(tmp_path, monkeypatch):
    import torchvision.datasets

    def offline(*arguments, **options):
        raise RuntimeError("no network")

    monkeypatch.setattr(torchvision.datasets, "MNIST", offline)
    with pytest.raises(DataError) as caught:
        load(DataSettings("mnist", str(tmp_path), download=True))
    assert "no network" in caught.value.rule
