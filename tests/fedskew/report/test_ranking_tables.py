"""What a report says of rankings: numbers with intervals, of the positive class where there are two classes."""

from dataclasses import replace
from pathlib import Path

import pytest
from frozen import ONE_COLUMN, frozen_results, with_predictions

from fedskew.report.tables import ranking_tables


def test_every_number_has_its_interval(tmp_path: Path) -> None:
    known = with_predictions(frozen_results(tmp_path, **ONE_COLUMN), 2)
    (numbers,) = ranking_tables(known)
    assert [heading.text for heading in numbers.headings[1:3]] == ["AUROC", "AUPRC"]
    for row in numbers.rows:
        for cell in row[1:]:
            low, high = map(float, cell.below.strip("[]").split(", "))
            assert low <= float(cell.text.split()[0]) <= high


def test_many_classes_have_tables_of_their_own(tmp_path: Path) -> None:
    known = with_predictions(frozen_results(tmp_path, **ONE_COLUMN))
    captions = [table.caption for table in ranking_tables(known)]
    assert len(captions) == 3 and "AUPRC by class" in captions[2]


@pytest.mark.parametrize("name", ["0", "1"])
def test_the_caption_names_the_positive_class(name: str, tmp_path: Path) -> None:
    known = with_predictions(frozen_results(tmp_path, **ONE_COLUMN), 2)
    measured = {}
    for place, group in known.measured.items():
        measured[place] = []
        for one in group:
            last = one.points[-1]
            numbers = replace(last.numbers, positive_class=name)
            data = replace(one.run.settings.data, classes="0,1")
            settings = replace(one.run.settings, data=data)
            points = (*one.points[:-1], replace(last, numbers=numbers))
            measured[place].append(
                replace(one, run=replace(one.run, settings=settings), points=points)
            )
    table = ranking_tables(replace(known, measured=measured))[0]
    assert table.caption.endswith(f"sensitivity and specificity of class {name}.")
