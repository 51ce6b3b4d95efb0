"""Every relative link and anchor of the documentation leads somewhere, and every page named in the code exists."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md"))]
)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *#*$", re.MULTILINE)
MENTION = re.compile(r"\bdocs/[\w/.-]+\.(?:md|ipynb|png)\b")
TEST = re.compile(r"\btest_\w+\.py\b")


def slug(heading: str) -> str:
    """Return a heading's anchor, as GitHub and MkDocs form it."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that a page offers: its headings and its HTML ids."""
    text = FENCE.sub("", page.read_text())
    named = re.findall(r"""<a (?:id|name)=["']([^"']+)["']""", text)
    return {slug(heading) for heading in HEADING.findall(text)} | set(named)


def broken_links(page: Path, text: str) -> Iterator[str]:
    """Yield the relative links in `text`, written on `page`, that lead nowhere."""
    for link in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", link):  # https:, mailto:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


def test_every_relative_link_and_anchor_resolves() -> None:
    broken = {str(page): list(broken_links(page, page.read_text())) for page in PAGES}
    assert not {page: links for page, links in broken.items() if links}
    page = ROOT / "docs" / "index.md"  # the control: what is broken is found
    text = "[a](nowhere.md) [b](index.md#no-such-heading) [c](index.md#start) [d](https://x.org)"
    assert list(broken_links(page, text)) == ["nowhere.md", "index.md#no-such-heading"]


def test_every_test_that_a_page_names_exists() -> None:
    there = {file.name for file in (ROOT / "tests").rglob("test_*.py")}
    named = {str(page): set(TEST.findall(page.read_text())) for page in PAGES}
    assert not {page: names - there for page, names in named.items() if names - there}


def test_every_page_that_a_file_names_exists() -> None:
    """Code, comments and commands name pages by their path from the root; old releases may name old ones."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    missing = []
    for name in listed.stdout.splitlines():
        file = ROOT / name
        if file.suffix == ".png" or not file.is_file():
            continue
        text = file.read_text(errors="ignore")
        if file.name == "CHANGELOG.md":
            text = text.partition("\n## [0")[0]
        for mention in MENTION.findall(text):
            if not (ROOT / mention).exists():
                missing.append(f"{name}: {mention}")
    assert not missing
