"""Tiny files in the official layouts of the data sets that people unpack themselves."""

from pathlib import Path

import numpy as np
from PIL import Image


def write_image(file: Path, size=(8, 8), mode="RGB", seed=0) -> np.ndarray:
    """Write a random image in the format of its suffix; a PNG comes back as written."""
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)
    return pixels


def write_mat(file: Path, number: int, first: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """X (32, 32, 3, N) uint8 and y (N, 1) uint8 from `first` on, as of SVHN (1..10) and SynthDigits (0..9)."""
    from scipy.io import savemat

    images = np.random.default_rng(seed).integers(0, 256, (32, 32, 3, number), np.uint8)
    labels = (np.arange(number) % 10 + first).astype(np.uint8)[:, None]
    file.parent.mkdir(parents=True, exist_ok=True)
    savemat(file, {"X": images, "y": labels})
    return np.moveaxis(images, -1, 0), labels.ravel()


def write_site(file: Path, subjects=10, regions=5, shortest=40, seed=0) -> dict[str, np.ndarray]:
    """One ABIDE site: time series of random lengths, every second subject with label 1."""
    draws = np.random.default_rng(seed)
    length = draws.integers(shortest, shortest + 10, subjects).astype(np.int32)
    arrays = {
        "ts": draws.normal(size=(length.sum(), regions)).astype(np.float32),
        "length": length,
        "id": np.array([f"{file.stem}_{number:07d}" for number in range(subjects)]),
        "label": (np.arange(subjects) % 2).astype(np.uint8),
        "roi": np.array([f"#{number}" for number in range(regions)]),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **arrays)
    return arrays


CSV_HEADER = (
    ",Unnamed: 0,SUB_ID,X,subject,SITE_ID,FILE_ID,DX_GROUP,DSM_IV_TR,AGE_AT_SCAN,FIQ_TEST_TYPE\n"
)


def write_pcp(
    folder: Path, site="NYU", subjects=10, first=50952, kind="cpac/filt_noglobal", seed=0
) -> list[np.ndarray]:
    """ABIDE_pcp as nilearn's fetch_abide_pcp leaves it: the csv of phenotypes and a .1D file a subject.

    The even subjects have autism; a subject without a file, which the csv names no_filename, precedes each of them.
    """
    draws, series = np.random.default_rng(first), []
    (folder / kind).mkdir(parents=True, exist_ok=True)
    table = folder / "Phenotypic_V1_0b_preprocessed1.csv"
    lines = table.read_text() if table.exists() else CSV_HEADER
    for number in range(first, first + subjects):
        file_id = f"{site}_{number:07d}"
        group = 1 if number % 2 == 0 else 2
        lines += f'1,1,{number},1,{number},{site},no_filename,{group},0,20.5,"WASI, full"\n' * (
            group == 1
        )
        lines += f'1,1,{number},1,{number},{site},{file_id},{group},0,20.5,"WASI, full"\n'
        series.append(draws.normal(size=(40 + number % 3, 5)).astype(np.float32))
        header = "\t".join(f"#{region}" for region in (10, 11, 12, 4801, 4802))
        rows = ["\t".join(f"{value:.6f}" for value in row) for row in series[-1]]
        (folder / kind / f"{file_id}_rois_ho.1D").write_text("\n".join([header, *rows]) + "\n")
    table.write_text(lines)
    return series
