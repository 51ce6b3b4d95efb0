"""Tables of sites are read strictly: one sentence with the file, the row, the column, the value and the rule."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedskew.diagnosis.table import (
    TableError,
    average_subjects,
    read_counts,
    read_moments,
    site_table,
    table_of_samples,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("site,a,b\nx,1,-2\ny,1,1\n", "row 'x', column 'b': -2 is negative"),
        ("site,a,b\nx,1,2\ny,1.5,1\n", "row 'y', column 'a': 1.5 is fractional"),
        ("site,a,b\nx,1,nan\ny,1,1\n", "row 'x', column 'b': nan is not finite"),
        ("site,a,b\nx,1,1e400\ny,1,1\n", "row 'x', column 'b': 1e400 is not finite"),
        ("site,a,b\nx,1,many\ny,1,1\n", "row 'x', column 'b': 'many' is no number"),
        ("site,a,b\nx,1,\ny,1,1\n", "row 'x', column 'b': '' is no number"),
        ("site,a,b\nx,1,1_000\ny,1,1\n", "'1_000' is no number"),
        ("site,a,b\nx,1,1e13\ny,1,1\n", "1e13 is too large"),
        ("site,a,b\nx,1,2,3\ny,1,1\n", r"row 2 \('x'\) has 4 columns, the header 3"),
        ("site,a,b\nx,1,2\ny,1\n", r"row 3 \('y'\) has 2 columns, the header 3"),
        ("site,a,b\nx,1,2\n", r"one a site with samples alone \(x\)"),
        ("site,a,b\nx,1,2\ny,0,0\n", r"one a site with samples alone \(x\)"),
        ("site,a,b\nx,0,0\ny,0,0\n", "no a site with samples alone"),
        ("site,a\nx,1\ny,2\n", r"one a class with samples alone \(a\)"),
        ("berlin,120,30\nparis,10,20\n", "header 'berlin,120,30' looks like data"),
        ("berlin,0.5,2\nparis,1,2\n", "header 'berlin,0.5,2' looks like data"),
        ("site|a|b\nx|1|2\n", "single column; columns are separated by commas, semicolons or tabs"),
        ("site;a;b\nx;1.234;2\ny;1;1\n", "1.234 is fractional"),
        (
            "site;a;b\nx;1,0;2.0\ny;1;1\n",
            "'1,0' and '2.0': the decimal mark must be a point in every",
        ),
        ("site,a,b\nx,1,\uff12\ny,1,1\n", "'\uff12' is no number"),
        ("site,a,a\nx,1,2\ny,1,1\n", "column 'a': stands there 2 times"),
        ("site,a,b\nx,1,2\nx,1,1\n", "site 'x': stands there 2 times"),
        (
            "site,a,b\nx\x1b[31m,1,2\ny,1,1\n",
            "site 'x.x1b.31m': must have a name, of printable characters",
        ),
        ("site,a,b\n,1,2\ny,1,1\n", "site '': must have a name"),
        ("", "0 lines: must be a header and a row for each site"),
    ],
)
def test_a_bad_table_is_refused_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "counts.csv"
    file.write_text(text)
    with pytest.raises(TableError, match=words) as refusal:
        read_counts(file)
    assert str(refusal.value).startswith(str(file)) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("separator", "encoding"),
    [(";", "utf-8-sig"), ("\t", "utf-16"), (",", "utf-16-le"), (",", "utf-8")],
)
def test_a_table_as_spreadsheets_write_it(tmp_path: Path, separator: str, encoding: str) -> None:
    file = tmp_path / "counts.csv"
    text = "site,a,b\r\nx,1,2\r\ny,3,4\r\n".replace(",", separator)
    file.write_bytes(text.encode(encoding))
    table = read_counts(file)
    assert (table.sites, table.classes) == (("x", "y"), ("a", "b"))
    assert table.counts_KC.tolist() == [[1, 2], [3, 4]]


def test_moments_may_have_decimal_commas(tmp_path: Path) -> None:
    file = tmp_path / "moments.csv"
    file.write_text("site;mean;std\nx;0,5;0,25\ny;1;2\n")
    moments = read_moments(file, ("x", "y"))
    assert (moments.means_KF.tolist(), moments.deviations_KF.tolist()) == (
        [[0.5], [1]],
        [[0.25], [2]],
    )


def test_a_good_table_is_read(tmp_path: Path) -> None:
    file = tmp_path / "counts.csv"
    file.write_text("\ufeffsite, 3 ,8,9\r\nx,1,2.0,0\r\n\r\nnobody,0,0,0\r\n y ,3,4e1,0\r\n")
    table = read_counts(file)
    assert (table.sites, table.classes, table.without) == (("x", "y"), ("3", "8"), ("nobody", "9"))
    assert table.counts_KC.tolist() == [[1, 2], [3, 40]]
    file.write_text("anything,0,1\nx,1,2\ny,3,4\n")
    assert read_counts(file).classes == ("0", "1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("site,mean\nx,1\ny,2\n", "must be `mean` and `std`, or pairs"),
        ("site,mean a,std b\nx,1,1\ny,2,1\n", "must be `mean` and `std`, or pairs"),
        ("site,mean,std\nx,1,1\nz,2,1\n", "has no row for site 'y'"),
        ("site,mean,std\nx,1,1\ny,2,1\nz,1,1\n", "has a row for what is no site with samples: 'z'"),
        ("site,mean,std\nx,1,1\ny,2,0\n", "row 'y', column 'std': 0: must be greater than 0"),
        ("site,mean,std\nx,1,1\ny,inf,1\n", "row 'y', column 'mean': inf is not finite"),
    ],
)
def test_bad_moments_are_refused_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "moments.csv"
    file.write_text(text)
    with pytest.raises(TableError, match=words):
        read_moments(file, ["x", "y"])


def test_moments_are_in_the_order_of_the_sites_and_named_by_feature(tmp_path: Path) -> None:
    file = tmp_path / "moments.csv"
    file.write_text("site,std red,mean red,mean blue,std blue\ny,1,2,3,4\nx,5,6,7,8\n")
    moments = read_moments(file, ["x", "y"])
    assert moments.features == ("red", "blue")
    assert moments.means_KF.tolist() == [[6, 7], [2, 3]] and moments.deviations_KF.tolist() == [
        [5, 8],
        [1, 4],
    ]


def test_a_table_is_diagnosed_without_torch() -> None:
    code = (
        "import sys; from fedskew.diagnosis.rules import diagnose, line; "
        "from fedskew.diagnosis.table import site_table; import numpy as np; "
        "line(diagnose(site_table('', 'xy', 'ab', np.eye(2, dtype=int) * 90))); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_of_what_is_empty_are_kept() -> None:
    table = site_table("", ["x", "y", "z"], ["a", "b"], np.array([[1, 1], [0, 0], [2, 2]]))
    assert table.without == ("y",) and table.sites == ("x", "z")


def test_subjects_share_the_samples_of_their_class_and_site_evenly() -> None:
    """Seven samples of three subjects are 3, 2 and 2; a subject has one sample at least, and one is one's own."""
    counts_KC = np.array([[7, 0], [2, 3]])
    subjects = average_subjects(counts_KC, np.array([[3, 0], [5, 0]]))
    assert subjects.site_S.tolist() == [0, 0, 0, 1, 1, 1]
    assert subjects.counts_SC.tolist() == [[3, 0], [2, 0], [2, 0], [1, 0], [1, 0], [0, 3]]


def test_the_table_of_a_run_is_that_of_its_settings() -> None:
    samples = {"clients": ["north", "south"], "train": [[7, 1], [2, 3]]}
    table = table_of_samples("run", samples)
    assert table is not None and table.subjects is None
    assert (list(table.sites), list(table.classes)) == (["north", "south"], ["0", "1"])
    assert table.counts_KC.tolist() == [[7, 1], [2, 3]]
    known = table_of_samples("run", {**samples, "subjects": [[3, 1], [1, 1]]})
    assert known is not None and known.subjects is not None
    assert len(known.subjects.site_S) == 6
    with pytest.raises(TableError, match="subjects are of other clients or classes than samples"):
        table_of_samples("run", {**samples, "subjects": [[3, 1]]})
    with pytest.raises(TableError, match="subjects are of other clients or classes than samples"):
        table_of_samples("run", {**samples, "subjects": [[3, 1], [1, 1], [1, 1]]})
    assert table_of_samples("run", None) is None


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "counts.csv"
    file.write_bytes(b"site,a,b\nx\xff,1,2\ny,1,1\n")
    with pytest.raises(TableError, match=r"counts.csv.*cannot be read: .*0xff"):
        read_counts(file)


def test_a_header_may_begin_with_any_word_where_the_others_are_names(tmp_path: Path) -> None:
    file = tmp_path / "counts.csv"
    file.write_text("berlin,a,b\nx,1,2\ny,1,1\n")
    assert list(read_counts(file).classes) == ["a", "b"]
    file.write_text("berlin,0,1\nx,1,2\ny,1,1\n")
    assert list(read_counts(file).classes) == ["0", "1"], "classes are numbered"
