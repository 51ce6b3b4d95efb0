"""Tables of sites are read strictly: what is no table of counts or moments is refused with the file's name."""

import numpy as np
import pytest

from data import DataError
from fedskew.diagnosis.table import Subjects, read_counts, read_moments, site_table

GOOD = "site,a,b\nx,1,2\ny,1,1\n"
WRONG_COUNTS = {
    "negative": GOOD.replace("x,1,2", "x,1,-1"),
    "infinite": GOOD.replace("x,1,2", "x,1,1e400"),
    "grouped": GOOD.replace("x,1,2", "x,1,1_000"),
    "digits of another script": GOOD.replace("x,1,2", "x,1,\uff12"),
    "too large": GOOD.replace("x,1,2", "x,1,1000000000001"),
    "one filled site": GOOD.replace("y,1,1", "y,0,0"),
    "one class": "site,a\nx,1\ny,2\n",
    "no header": "berlin,120,30\nparis,10,20\n",
    "a header of fractions": "berlin,0.5,2\nparis,1,2\n",
    "another separator": "site|a|b\nx|1|2\n",
    "two decimal marks": "site;a;b\nx;1,0;2.0\ny;1;1\n",
    "a site twice": f"{GOOD}x,3,1\n",
    "a control character": GOOD.replace("x,", "x\x1b[31m,"),
    "no name": GOOD.replace("x,", ","),
}


@pytest.mark.parametrize("fault", WRONG_COUNTS)
def test_a_bad_table_is_refused(fault, tmp_path):
    file = tmp_path / "counts.csv"
    file.write_text(GOOD.replace("x,1,2", "x,1,1000000000000"))  # the control: the most
    assert read_counts(file).counts_KC.max() == 10**12
    file.write_text(WRONG_COUNTS[fault])
    with pytest.raises(DataError) as refusal:
        read_counts(file)
    assert refusal.value.where.startswith(str(file)) and "\n" not in str(refusal.value)


def test_a_table_as_spreadsheets_write_it(tmp_path):
    file = tmp_path / "counts.csv"
    text = "site, a ,b,empty\r\nx,1,2,0\r\n\r\nnobody,0,0,0\r\n y ,3,4e1,0\r\n"
    file.write_bytes(text.replace(",", ";").encode("utf-8-sig"))
    table = read_counts(file)
    assert (table.sites, table.classes) == (("x", "y"), ("a", "b"))
    assert table.counts_KC.tolist() == [[1, 2], [3, 40]]
    assert table.without == ("nobody", "empty")


@pytest.mark.parametrize("head", ["site,3,8,5", "Client,0,1,2", "berlin,a,b,c"])
def test_classes_may_be_called_by_numbers_beside_a_word_for_sites(head, tmp_path):
    file = tmp_path / "counts.csv"
    file.write_text(f"{head}\nx,1,2,1\ny,1,1,1\n")
    assert list(read_counts(file).classes) == head.split(",")[1:]


WRONG_MOMENTS = {
    "a mean alone": "site,mean\nx,1\ny,2\n",
    "of two features": "site,mean a,std b\nx,1,1\ny,2,1\n",
    "a site is missing": "site,mean,std\nx,1,1\n",
    "a site too many": "site,mean,std\nx,1,1\ny,2,1\nz,1,1\n",
    "no deviation": "site,mean,std\nx,1,1\ny,2,0\n",
    "not finite": "site,mean,std\nx,1,1\ny,inf,1\n",
}


@pytest.mark.parametrize("fault", WRONG_MOMENTS)
def test_bad_moments_are_refused(fault, tmp_path):
    file = tmp_path / "moments.csv"
    file.write_text(WRONG_MOMENTS[fault])
    with pytest.raises(DataError):
        read_moments(file, ["x", "y"])


def test_moments_are_in_the_order_of_the_sites_and_named_by_feature(tmp_path):
    file = tmp_path / "moments.csv"
    file.write_text("site;std red;mean red;mean blue;std blue\ny;1;2;3;0,25\nx;5;6;7,5;8\n")
    moments = read_moments(file, ["x", "y"])
    assert moments.features == ("red", "blue")
    assert moments.means_KF.tolist() == [[6, 7.5], [2, 3]]
    assert moments.deviations_KF.tolist() == [[5, 8], [1, 0.25]]


def test_what_is_empty_is_left_out_with_its_subjects():
    counts_KC = np.array([[4, 0, 2], [0, 0, 0], [2, 0, 8]])
    subjects = Subjects(np.array([0, 0, 2]), np.array([[4, 0, 0], [0, 0, 2], [2, 0, 8]]))
    table = site_table("", "xyz", "abc", counts_KC, subjects)
    assert table.without == ("y", "b") and table.sites == ("x", "z")
    assert table.subjects.site_S.tolist() == [0, 0, 1]
    assert table.subjects.counts_SC.tolist() == [[4, 0], [0, 2], [2, 8]]
