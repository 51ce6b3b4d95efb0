"""What goes into a paper: LaTeX tables, and figures as files."""

from pathlib import Path

import pytest
from command_line import FedSkew
from frozen import ONE_COLUMN, report_words

from fedskew.report.render import latex_text


def test_characters_that_are_active_in_latex_are_escaped() -> None:
    assert latex_text("95 % of_seeds & \N{MINUS SIGN}1.0") == r"95 \% of\_seeds \& $-$1.0"


def test_two_forms_at_once_and_figures_of_statements_are_refused(
    tmp_path: Path, fedskew: FedSkew
) -> None:
    folder = tmp_path / "figures"
    for words in (("--latex", "--csv"), ("papers", "--figures", folder)):
        status, out, err = fedskew("report", *words)
        assert (status, out, err.count("\n")) == (2, "", 1)
    assert not folder.exists()


def test_the_command_prints_latex(tmp_path: Path, fedskew: FedSkew) -> None:
    words = report_words(tmp_path)
    status, out, _ = fedskew(*words, "--latex")
    assert status == 0 and out.startswith("% \\usepackage{booktabs}")


@pytest.mark.slow
def test_the_command_writes_every_figure_in_three_formats(fedskew: FedSkew, tmp_path: Path) -> None:
    words = report_words(tmp_path / "results", **ONE_COLUMN)
    assert fedskew(*words, "--figures", tmp_path / "figures")[0] == 0
    files = list((tmp_path / "figures" / "frozen").iterdir())
    stems = {file.stem for file in files}
    assert {file.suffix for file in files} == {".svg", ".pdf", ".png"}
    assert len(files) == 3 * len(stems)
    assert {"claims", "curves-lda-0-5", "clients-lda-0-5", "reach-lda-0-5"} <= stems
