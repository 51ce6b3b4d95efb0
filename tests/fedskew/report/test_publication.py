"""What goes into a paper: LaTeX tables, BibTeX, and figures as files."""

from pathlib import Path

import pytest
import yaml
from command_line import FedSkew
from frozen import ONE_COLUMN, report_words

from data.readers.catalog import ALIASES, KNOWN
from fedskew.report.render import HERE, latex_text
from server_app.methods import METHODS


def test_characters_that_are_active_in_latex_are_escaped() -> None:
    assert latex_text("95 % of_seeds & \N{MINUS SIGN}1.0") == r"95 \% of\_seeds \& $-$1.0"


def test_every_method_and_data_set_has_a_reference_and_no_other_name_has() -> None:
    references = yaml.safe_load((HERE / "references.yaml").read_text())
    known = {name for reference in references for name in reference["names"]}
    assert known == {*METHODS, *KNOWN, *ALIASES, "project"}


def test_two_forms_at_once_and_figures_of_statements_are_refused(
    tmp_path: Path, fedskew: FedSkew
) -> None:
    folder = tmp_path / "figures"
    for words in (("--latex", "--bibtex"), ("papers", "--figures", folder)):
        status, out, err = fedskew("report", *words)
        assert (status, out, err.count("\n")) == (2, "", 1)
    assert not folder.exists()


def test_the_command_prints_latex_and_bibtex(tmp_path: Path, fedskew: FedSkew) -> None:
    words = report_words(tmp_path)
    status, out, _ = fedskew(*words, "--latex")
    assert status == 0 and out.startswith("% \\usepackage{booktabs}")
    status, out, _ = fedskew(*words, "--bibtex")
    assert status == 0 and out.startswith("@") and "shang2022creff" in out


@pytest.mark.slow
def test_the_command_writes_every_figure_in_three_formats(fedskew: FedSkew, tmp_path: Path) -> None:
    words = report_words(tmp_path / "results", **ONE_COLUMN)
    assert fedskew(*words, "--figures", tmp_path / "figures")[0] == 0
    files = list((tmp_path / "figures" / "frozen").iterdir())
    stems = {file.stem for file in files}
    assert {file.suffix for file in files} == {".svg", ".pdf", ".png"}
    assert len(files) == 3 * len(stems)
    assert {"claims", "curves-lda-0-5", "clients-lda-0-5", "reach-lda-0-5"} <= stems
