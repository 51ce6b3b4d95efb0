"""Text from elsewhere is printed as text."""

import numpy as np
from rich.table import Table
from rich.text import Text

from fedskew.formatting import console


def test_control_characters_are_written_as_text(capsys, fedskew):
    """A class, a site or a file may be called by what clears a terminal, or worse."""
    table = Table("class")
    table.add_row(Text("ill\x1b[2J"))
    console().print("first\nsecond\x1b]0;title\x07")
    console().print(table)
    printed = capsys.readouterr().out
    assert "first\nsecond\\x1b]0;title" in printed and "ill\\x1" in printed
    status, _, errors = fedskew("diagnose", "\x1b[2Jnowhere")
    assert status == 2 and "\\x1b[2Jnowhere" in errors
    assert "\x1b" not in printed + errors and "\x07" not in printed + errors


def test_names_are_text_whatever_they_hold(tmp_path, fedskew):
    """Rich would read a class [/b] as the end of bold, which is a traceback, and drop [red]."""
    draws, labels = np.random.default_rng(0), np.arange(40) % 3
    images = draws.integers(0, 256, (40, 8, 8), np.uint8)
    folder = tmp_path / "[/b] :smile:"
    folder.mkdir(parents=True)
    split = {
        "train_images": images,
        "train_labels": labels,
        "test_images": 255 - images,
        "test_labels": labels,
    }
    np.savez(folder / "own.npz", **split)
    stated = [
        f"dataset=npz:{folder}/own.npz",
        "classes=[/b],[red],:smile:",
        "input-shape=1x8x8",
        "model=mlp-bn",
    ]
    stated += ["rounds=1", "clients=2", "min-samples=5", "alpha=1", f"results={folder}"]
    words = [word for text in stated for word in ("--set", text)]
    status, output, errors = fedskew("run", "--engine", "inprocess", *words)
    assert status == 0, errors
    output += fedskew("report", "--verbose", "--results", folder)[1]
    assert "[/b]" in output and "[red]" in output and ":smile:" in output and str(folder) in output
