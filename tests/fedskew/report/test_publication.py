"""What goes into a paper: LaTeX tables, BibTeX, and figures as files."""

import re
from pathlib import Path

import pytest
from command_line import FedSkew
from frozen import ONE_COLUMN, frozen_results, report_words

from data.readers.catalog import ALIASES, KNOWN
from fedskew.report.document import Document, document
from fedskew.report.format import Table, TableCell
from fedskew.report.render import bibtex, latex, references, rendered
from server_app.methods import METHODS


@pytest.fixture(scope="module")
def frozen_document(tmp_path_factory: pytest.TempPathFactory) -> Document:
    return document(frozen_results(tmp_path_factory.mktemp("frozen")))


def test_a_latex_table_has_rules_bold_cells_and_no_active_characters() -> None:
    table = Table(
        "accuracy in percent, 95 % of_seeds",
        [TableCell("row"), TableCell("LDA 0.1 & IF 10")],
        [[TableCell("fedavg"), TableCell("70.1", below="\N{MINUS SIGN}1.0", strong=True)]],
    )
    text = rendered("report.tex", tables=[("tab:one", table)])
    assert text.splitlines() == [
        r"% \usepackage{booktabs}",
        "",
        r"\begin{table}",
        r"  \centering",
        r"  \caption{Accuracy in percent, 95 \% of\_seeds}",
        r"  \label{tab:one}",
        r"  \begin{tabular}{lr}",
        r"    \toprule",
        r"    row & LDA 0.1 \& IF 10 \\",
        r"    \midrule",
        r"    fedavg & \textbf{70.1} ($-$1.0) \\",
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]


def test_every_table_of_the_report_has_as_many_cells_as_columns(frozen_document: Document) -> None:
    text = latex([frozen_document])
    assert text.isascii(), sorted({character for character in text if not character.isascii()})
    text = re.sub(r"p\{0\.\d+\\linewidth\}", "p", text)
    tables = re.findall(r"\\begin\{tabular\}\{([lrp]+)\}(.*?)\\end\{tabular\}", text, re.DOTALL)
    assert len(tables) >= 4  # the main table, the claims, the differences of two columns
    for alignment, body in tables:
        for row in re.findall(r"^ +(.*) \\\\$", body, re.MULTILINE):
            assert len(re.split(r"(?<!\\)&", row)) == len(alignment)
    # the interval of a difference goes along
    assert re.search(r"\[[+$-].*, .*\]", text)


def test_every_method_and_data_set_has_a_reference_and_no_other_name_has() -> None:
    known = {name for names, _ in references() for name in names}
    assert known == {*METHODS, *KNOWN, *ALIASES, "project"}


def test_a_report_cites_its_own_methods_and_data_alone(frozen_document: Document) -> None:
    text = bibtex([frozen_document])
    keys = re.findall(r"^@\w+\{(\w+),", text, re.MULTILINE)
    assert keys == [
        "fedskew",
        "beutel2020flower",
        "mcmahan2017fedavg",
        "shen2023fedshift",
        "shang2022creff",
        "digits",
    ]


def test_two_forms_at_once_and_figures_of_statements_are_refused(
    tmp_path: Path, fedskew: FedSkew
) -> None:
    folder = tmp_path / "figures"
    for words in (("--latex", "--bibtex"), ("papers-smoke", "--figures", folder)):
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
    assert {"claims", "curves-lda-0-5", "clients-lda-0-5", "time-lda-0-5"} <= stems
