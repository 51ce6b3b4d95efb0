"""Data of other libraries: MedMNIST's files with and without its package, folders of the datasets library."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from data_as_found import every, hugging_face, npz

from data import DataError, DataSettings, federate, load, resolve
from data.readers.user_data import guess_settings


def test_medmnist_is_read_from_data_root_or_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = DataSettings("medmnist:toymnist", str(tmp_path), classes="2", input_shape="1x6x5")
    with pytest.raises(
        DataError, match=r"toymnist\.npz: is not there, nor in ~/\.medmnist: --set download=true"
    ):
        load(settings)
    (tmp_path / ".medmnist").mkdir()
    npz(every("labels", lambda labels: labels[:, None]), "toymnist.npz")(tmp_path / ".medmnist")
    data = load(settings)
    assert data.train_labels.tolist() == [0, 1] * 12 and len(data.val_labels) == 4
    (tmp_path / ".medmnist" / "toymnist.npz").rename(tmp_path / "toymnist.npz")
    assert load(settings).content == data.content


def test_medmnist_is_downloaded_by_its_package(tmp_path, monkeypatch):
    """A stand-in for the package, which writes what the real one downloads."""

    def kind(split, download, root, size):
        assert download and size == 64
        npz(name="toymnist_64.npz")(type(tmp_path)(root))

    info = {"toymnist": {"python_class": "ToyMNIST", "label": {"1": "disease", "0": "normal"}}}
    monkeypatch.setitem(sys.modules, "medmnist", SimpleNamespace(INFO=info, ToyMNIST=kind))
    settings = DataSettings("medmnist:toymnist_64", str(tmp_path), download=True)
    assert guess_settings(settings.dataset, settings).settings == {
        "classes": "normal,disease",
        "input-shape": "1x6x5",
    }
    monkeypatch.setitem(sys.modules, "medmnist", None)
    with pytest.raises(
        DataError,
        match=r"medmnist reads it and is not installed: pip install 'fedskew\[medmnist\]'",
    ):
        load(
            DataSettings(
                "medmnist:other", str(tmp_path), classes="2", input_shape="1x6x5", download=True
            )
        )


@pytest.mark.slow  # only `make slow` installs the library
def test_a_folder_of_the_datasets_library(tmp_path):
    pytest.importorskip("datasets")
    saved = hugging_face("image", "label", "hospital")(tmp_path)
    settings = DataSettings(f"hf:{saved}", classes="cat,dog", input_shape="1x6x5")
    data = load(settings)
    assert len(data.train_labels) + len(data.test_labels) == 24 and data.class_names == (
        "cat",
        "dog",
    )
    assert data.train_inputs.dtype == np.uint8 and resolve(settings).partition == "lda"
    sites = replace(settings, columns="site=hospital")
    assert federate(sites, 0).dataset.domain_names == ("N", "S")
    with pytest.raises(DataError, match="there is no column 'pixels', only image, label, hospital"):
        load(replace(settings, columns="path=pixels"))
    with pytest.raises(DataError, match=r"column label: is of type .*: must be images"):
        load(replace(settings, columns="path=label,label=hospital"))
    with pytest.raises(DataError, match="column label: 'dog': must be one of classes = cat, bird"):
        load(replace(settings, classes="cat,bird"))


@pytest.mark.slow  # only `make slow` installs the library
def test_no_network_is_asked(tmp_path):
    pytest.importorskip("datasets")
    with pytest.raises(DataError, match="the datasets library cannot read it, without the network"):
        load(DataSettings("hf:nobody/nothing", classes="2", input_shape="1x6x5"))


def test_the_datasets_library_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        DataError, match=r"datasets reads it and is not installed: pip install 'fedskew\[hf\]'"
    ):
        load(DataSettings(f"hf:{tmp_path}", classes="2", input_shape="1x6x5"))
