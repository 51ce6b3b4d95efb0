"""The HTML report: what its parser sees, its colors' contrast, and what a browser makes of it."""

import itertools
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from frozen import ENTRY, frozen_results

from fedskew.report.document import document
from fedskew.report.page import TEMPLATES, html
from fedskew.report.svg import COLORS, DASHES, WIDE, WIDTH, Style, inlined

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Collects elements with their attributes, and checks that tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.text = text
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, *tags: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(html([document(frozen_results(tmp_path_factory.mktemp("frozen")))]))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Page:
    folders = (tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second"))
    column = {"columns": {"LDA 0.5": ENTRY["columns"]["LDA 0.5"]}, "cells": {"fedavg": [75.5]}}
    first, second = (document(frozen_results(folder, **column)) for folder in folders)
    object.__setattr__(second.results.experiment, "name", "other")
    return Page(html([first, second]))


def test_the_page_needs_nothing_from_outside(page: Page) -> None:
    assert not page.all("script", "img", "iframe", "object")
    links = [
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name.endswith(("href", "src"))
    ]
    assert all(link.startswith(("#", "data:")) for link in links)
    assert not re.search(r"@import|url\((?!#)", page.text)


def test_ids_are_unique_and_references_lead_somewhere(two: Page) -> None:
    ids = [attributes["id"] for _, attributes in two.elements if "id" in attributes]
    assert len(ids) == len(set(ids)) > 100
    used = set(re.findall(r"url\(#([^)]*)\)", two.text)) | set(
        re.findall(r'href="#([^"]+)"', two.text)
    )
    assert used <= set(ids)


def test_headings_go_down_one_step_at_a_time(two: Page) -> None:
    levels = [int(tag[1]) for tag, _ in two.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1 and levels.count(2) == 2
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))


def test_tables_are_real_ones(page: Page) -> None:
    tables, captions = page.all("table"), page.all("caption")
    assert len(tables) == len(captions) >= 12
    scopes = [attributes.get("scope") for attributes in page.all("th")]
    assert set(scopes) == {"col", "row"}
    for region in page.all("div"):
        if region.get("class") == "scroll":
            assert region["role"] == "region" and region["aria-label"] and region["tabindex"] == "0"


def test_figures_say_what_they_show(page: Page) -> None:
    labels = [
        attributes["aria-label"]
        for attributes in page.all("div")
        if attributes.get("role") == "img"
    ]
    assert len(labels) == len(page.all("figure")) >= 10
    assert any(
        re.search(r"in round 2: creff 77\.6, fedshift 75\.7, fedavg 74\.9\.", label)
        for label in labels
    )
    assert any("3. creff \N{MINUS SIGN} fedavg +26.5" in label for label in labels)
    assert all("aria-hidden" in attributes for attributes in page.all("svg"))


def test_the_verdict_comes_before_the_first_table(page: Page) -> None:
    order = [
        page.text.index(words)
        for words in ("Of 4 claims", "CReFF beats FedAvg", "<table", "How this is counted")
    ]
    assert order == sorted(order)
    assert page.text.count("missing:") == 1 and "Before you trust these numbers" in page.text


def test_several_experiments_begin_with_all_their_claims(
    two: Page, page: Page, tmp_path: Path
) -> None:
    says = [verdict.claim.says for verdict in document(frozen_results(tmp_path)).verdicts]
    overview = two.text[two.text.index("<nav") : two.text.index("</nav>")]
    assert says and all(overview.count(claim) == 2 for claim in says)
    assert f"Of {2 * len(says)} claims" in two.text[: two.text.index("<nav")]
    assert "<nav" not in page.text


def test_what_people_wrote_is_escaped(tmp_path: Path, no_drawings: None) -> None:
    claims = [{"says": "<b>a & b</b>", "better": "creff", "than": "fedavg"}]
    text = html(
        [document(frozen_results(tmp_path, title='<script>alert("x")</script>', claims=claims))]
    )
    assert not Page(text).all("script", "b")


def palettes() -> dict[str, dict[str, str]]:
    """Return the style sheet's colors, light and dark."""
    light, _, dark = TEMPLATES["style"].partition("prefers-color-scheme: dark")
    palette = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in (light, dark)]
    return {"light": palette[0], "dark": palette[1]}


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colors (WCAG 2.2)."""

    def luminance(color: str) -> float:
        shares = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        red, green, blue = (
            s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, bright = sorted((luminance(first), luminance(second)))
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_colors_can_be_told_from_their_background(mode: str) -> None:
    palette = palettes()[mode]
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    for name in ("ink", "soft", "link", "good", "bad", "half"):
        assert contrast(palette[name], palette["paper"]) >= 4.5, name
    assert contrast(palette["ink"], palette["warn"]) >= 4.5
    for number in range(len(COLORS)):  # graphics
        assert contrast(palette[f"series-{number}"], palette["paper"]) >= 3, number


def test_no_two_rows_look_alike() -> None:
    looks = [Style("", number) for number in range(len(COLORS) * len(DASHES))]
    assert len({(look.variable, look.dashes) for look in looks}) == len(looks)


def test_a_drawing_takes_colors_and_font_from_the_page(page: Page) -> None:
    drawings = "".join(re.findall(r"<svg.*?</svg>", page.text, re.DOTALL))
    assert "font-family" not in drawings and "<metadata" not in drawings
    assert not re.findall(
        r"#[0-9a-f]{6}(?![0-9a-f])", re.sub(r'(id|href)="[^"]*"|url\([^)]*\)', "", drawings)
    )
    assert "currentColor" in drawings and "var(--series-1)" in drawings
    assert inlined(
        '<?xml?><svg width="1pt" height="2pt" viewBox="0 0 1 2"><g id="a"/></svg>', "n"
    ) == ('<svg aria-hidden="true" viewBox="0 0 1 2"><g id="n-a"/></svg>')


PROBE = """<script>addEventListener("load", () => {
  const box = element => element.getBoundingClientRect();
  const drawings = [...document.querySelectorAll("figure svg")].filter(svg => svg.getClientRects().length);
  const texts = drawings.flatMap(svg => [...svg.querySelectorAll("text")].map(text => [box(text), box(svg)]));
  parent.postMessage(JSON.stringify({
    width: innerWidth, sideways: document.documentElement.scrollWidth - innerWidth,
    figures: drawings.length, tables: document.querySelectorAll("table").length,
    smallest: Math.min(...drawings.map(svg => Math.min(box(svg).width, box(svg).height))),
    cut: Math.max(...texts.map(([text, svg]) => Math.max(text.right - svg.right, svg.left - text.left))),
    ink: getComputedStyle(document.body).color}), "*");
});</script>"""


FRAME = """<!DOCTYPE html><html style="color-scheme: light dark"><title>nothing</title>
<script>addEventListener("message", event => document.title = event.data)</script>
<iframe src="report.html" style="width: {width}px; height: 900px; border: 0"></iframe></html>"""
"""A headless window cannot be as narrow as a phone; a frame can."""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; Debian's package is chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_a_browser_draws_it(scheme: str, width: int, page: Page, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(page.text.replace("</body>", PROBE + "</body>"))
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width))
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1300,1000", "--virtual-time-budget=3000",
        f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}", "--dump-dom", frame.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert ":CONSOLE" not in done.stderr, done.stderr
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None, done.stderr
    drawn = json.loads(title[1].replace("&quot;", '"'))
    assert drawn["width"] == width
    assert drawn["tables"] == len(page.all("table")) and drawn["figures"] == len(page.all("figure"))
    assert drawn["sideways"] <= 0, "the page scrolls sideways"
    assert drawn["smallest"] > 50, "a figure has no size"
    assert drawn["cut"] <= 2, "a figure's text is cut off"
    assert (drawn["ink"] == "rgb(230, 233, 236)") == (scheme == "dark")


def test_a_section_s_only_figure_is_drawn_for_the_page_s_width_too(tmp_path: Path) -> None:
    """Of one column: drawn wide, not stretched, which would make its text three times as large."""
    column = {"LDA 0.5": ENTRY["columns"]["LDA 0.5"]}
    changes = {"columns": column, "cells": {}, "notes": {}, "series": [], "claims": []}
    text = html([document(frozen_results(tmp_path, **changes))])
    widths = {
        place: {
            float(width) for width in re.findall(rf'{place}"><svg[^>]*viewBox="0 0 (\S+)', text)
        }
        for place in ("narrow", "wide")
    }
    assert list(widths["narrow"]) == pytest.approx([72 * WIDTH]) and WIDE > 2 * WIDTH
    assert list(widths["wide"]) == pytest.approx([72 * WIDE])
    alone = len(re.findall('<figure class="alone">', text))
    assert alone == text.count('<div class="wide">') >= 3  # differences, curves, time
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    several = html([document(frozen_results(tmp_path))])
    assert '<div class="narrow">' in several and 'id="e0-effect-0-wide' not in several


def test_tables_that_scroll_have_a_shadow_at_the_edge() -> None:
    """The covers move with the table (local), the shadows stay (scroll): there is one where more is to be seen."""
    rule = re.search(r"\n\.scroll \{(.*?)\n\}", TEMPLATES["style"], re.DOTALL)
    assert rule is not None
    assert rule[1].count("var(--edge)") == 2 and rule[1].count("100% local") == 2
    assert TEMPLATES["style"].count("--edge: rgb") == 2, "light and dark"
