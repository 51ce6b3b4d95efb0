"""The HTML report: one file that opens offline, tables that a screen reader can read, and what a browser draws."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from frozen import frozen_results, with_predictions

from fedskew.report.document import document
from fedskew.report.render import html

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

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, *tags: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The page of two experiments, without figures, which take seconds."""
    folders = (tmp_path_factory.mktemp(name) for name in ("first", "second"))
    first, second = (document(frozen_results(folder)) for folder in folders)
    object.__setattr__(second.results.experiment, "name", "other")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedskew.report.figures.figures", lambda document: {})
        return Page(html([first, second]))


def test_the_page_needs_nothing_from_outside(two):
    assert not two.all("script", "img", "iframe", "object")
    values = [named for _, attributes in two.elements for named in attributes.items()]
    links = [value for name, value in values if name.endswith(("href", "src"))]
    assert links and all(link.startswith(("#", "data:")) for link in links)
    ids = [value for name, value in values if name == "id"]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert not re.search(r"@import|url\((?!#)", two.text)


def test_what_people_wrote_is_escaped(tmp_path, no_drawings):
    claims = [{"says": "<b>a & b</b>", "better": "creff", "than": "fedavg"}]
    results = frozen_results(tmp_path, title='<script>alert("x")</script>', claims=claims)
    assert not Page(html([document(results)])).all("script", "b")


PROBE = """<script>
let errors = 0;
addEventListener("error", () => errors++);
addEventListener("load", () => {
  const box = element => element.getBoundingClientRect();
  const all = words => [...document.querySelectorAll(words)];
  const drawings = all("figure svg").filter(svg => svg.getClientRects().length);
  const texts = drawings.flatMap(svg => [...svg.querySelectorAll("text")].map(text => [box(text), box(svg)]));
  const ids = all("[id]").map(element => element.id);
  const wide = all(".scroll").filter(element => element.scrollWidth > element.clientWidth);
  parent.postMessage(JSON.stringify({
    width: innerWidth, sideways: document.documentElement.scrollWidth - innerWidth, errors,
    figures: all("figure").length, drawn: drawings.length, tables: all("table").length,
    described: all("figure [role=img][aria-label]").length, repeated: ids.length - new Set(ids).size,
    smallest: Math.min(...drawings.map(svg => Math.min(box(svg).width, box(svg).height))),
    cut: Math.max(...texts.map(([text, svg]) => Math.max(text.right - svg.right, svg.left - text.left))),
    wide: wide.length, scrolls: wide.every(element => getComputedStyle(element).overflowX == "auto"),
    outside: all("table").filter(table => !table.closest(".scroll") && box(table).right > innerWidth).length,
  }), "*");
});</script>"""
FRAME = """<!DOCTYPE html><html><title>nothing</title>
<script>addEventListener("message", event => document.title = event.data)</script>
<iframe src="report.html" style="width: {width}px; height: 900px; border: 0"></iframe></html>"""
"""A headless window cannot be as narrow as a phone; a frame can."""


@pytest.fixture(scope="module")
def drawn_page(tmp_path_factory):
    """The page of the frozen experiment with all its figures."""
    results = with_predictions(frozen_results(tmp_path_factory.mktemp("frozen")))
    return html([document(results)])


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; Debian's package is chromium")
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_draws_it(width, drawn_page, tmp_path):
    (tmp_path / "report.html").write_text(drawn_page.replace("<head>", f"<head>{PROBE}"))
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width))
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1300,1000", "--virtual-time-budget=3000",
        "--dump-dom", frame.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert ":CONSOLE" not in done.stderr, done.stderr
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None, done.stderr
    seen = json.loads(title[1].replace("&quot;", '"'))
    assert (seen["width"], seen["errors"], seen["repeated"]) == (width, 0, 0)
    assert seen["tables"] == drawn_page.count("<table") > 12
    assert seen["drawn"] == seen["figures"] == seen["described"] > 20
    assert seen["sideways"] <= 0, "the page scrolls sideways"
    assert seen["scrolls"] and seen["outside"] == 0, "a wide table scrolls in its box"
    assert (seen["wide"] > 0) == (width == 400)
    assert seen["smallest"] > 50, "a figure has no size"
    assert seen["cut"] <= 2, "a figure's text is cut off"
