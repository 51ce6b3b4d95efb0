"""What goes into a paper: LaTeX tables, figures as files, and BibTeX."""

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from command_line import FedSkew
from frozen import ENTRY, frozen, frozen_results

from data.readers.catalog import ALIASES, KNOWN
from fedskew.report.document import Document, document
from fedskew.report.format import Table, TableCell
from fedskew.report.publication import bibtex, latex, latex_table, references, write_figures
from server_app.methods import METHODS

LATEX = shutil.which("pdflatex")


@pytest.fixture(scope="module")
def frozen_document(tmp_path_factory: pytest.TempPathFactory) -> Document:
    return document(frozen_results(tmp_path_factory.mktemp("frozen")))


@pytest.fixture(scope="module")
def figures(frozen_document: Document, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The figures' files; drawing them takes seconds."""
    return write_figures([frozen_document], tmp_path_factory.mktemp("figures") / "all")


def test_a_latex_table_has_rules_bold_cells_and_no_active_characters() -> None:
    table = Table(
        "accuracy in percent, 95 % of_seeds",
        [TableCell("row"), TableCell("LDA 0.1 & IF 10")],
        [[TableCell("fedavg"), TableCell("70.1", below="\N{MINUS SIGN}1.0", strong=True)]],
    )
    assert latex_table(table, "tab:one").splitlines() == [
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


@pytest.mark.skipif(LATEX is None, reason="no pdflatex is installed")
def test_the_tables_compile(frozen_document: Document, tmp_path: Path) -> None:
    body = latex([frozen_document])
    source = (
        rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{body}\end{{document}}"
    )
    (tmp_path / "tables.tex").write_text(source)
    words = [str(LATEX), "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def test_every_method_and_data_set_has_a_reference() -> None:
    known = {name for reference in references() for name in reference.names}
    assert METHODS.keys() - known == set()
    assert {*KNOWN, *ALIASES} - known == set()


def test_every_name_of_a_reference_exists() -> None:
    known = {name for reference in references() for name in reference.names}
    assert known - {*METHODS, *KNOWN, *ALIASES} == {"project"}


def test_entries_are_complete_and_their_keys_differ() -> None:
    entries = [reference.entry for reference in references()]
    keys = [re.match(r"@\w+\{([a-z0-9]+),\n", entry) for entry in entries]
    assert all(keys)
    assert len({key[1] for key in keys if key}) == len(entries)
    for entry in entries:
        assert entry.count("{") == entry.count("}"), entry
        assert "  title = {" in entry and entry.endswith("}")
        assert "fedskew = " not in entry


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


def test_figures_are_written_as_svg_and_pdf_with_a_legend_of_the_rows(figures: list[Path]) -> None:
    folder = figures[0].parent
    assert sorted(figures) == sorted(folder.iterdir())
    assert len(set(figures)) == len(figures)
    assert len({file.stem for file in figures}) == len(figures) / 2
    assert {file.suffix for file in figures} == {".svg", ".pdf"}

    curve = folder / "curves-lda-0-1.svg"
    texts = [element.text for element in ElementTree.parse(curve).iter() if element.text]
    for word in ("Balanced accuracy: LDA 0.1", "fedavg", "creff", "fedshift", "round"):
        assert word in texts
    assert curve.with_suffix(".pdf").read_bytes().startswith(b"%PDF-")


def test_the_same_figures_have_the_same_bytes(
    figures: list[Path], frozen_document: Document, tmp_path: Path
) -> None:
    for file in write_figures([frozen_document], tmp_path):
        assert file.read_bytes() == (figures[0].parent / file.name).read_bytes(), file.name
        assert file.parent == tmp_path / "frozen"


def test_two_forms_at_once_are_refused(fedskew: FedSkew) -> None:
    status, out, err = fedskew("report", "--latex", "--bibtex")
    assert status == 2
    assert out == ""
    assert "report = '--markdown --csv --json --latex --bibtex': must be one of them" in err


def test_the_command_prints_latex_and_writes_figures(fedskew: FedSkew, tmp_path: Path) -> None:
    settings = {"dataset": "digits", "rounds": 2}
    entry = {**ENTRY, "settings": settings}
    experiments = tmp_path / "experiments.yaml"
    experiments.write_text(json.dumps({"frozen": entry}))
    results = tmp_path / "results"
    frozen(results)
    words = ("report", "frozen", "--experiments", experiments, "--results", results)

    status, out, _ = fedskew(*words, "--latex")
    assert status == 0
    assert out.startswith("% \\usepackage{booktabs}")

    status, out, err = fedskew(*words, "--figures", tmp_path / "figures")
    assert (status, out) == (0, "")
    files = list((tmp_path / "figures" / "frozen").iterdir())
    assert f"written: {len(files)} files in" in err

    blocked = tmp_path / "file"
    blocked.write_text("")
    status, _, err = fedskew(*words, "--figures", blocked)
    assert status == 2
    assert "--figures" in err and "cannot be written" in err


def test_figures_are_of_experiments_alone(fedskew: FedSkew, tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    status, _, err = fedskew("report", "papers-smoke", "--figures", folder)
    assert status == 2
    assert "--figures" in err and "is for experiments: papers-smoke is about statements" in err
    assert not folder.exists()
