"""What MkDocs needs so that pages written for GitHub build as a site: `make docs` loads this file.

A page may link to a source file, which GitHub shows and the site does not have. Such a link becomes plain text here.
tests/test_docs_links.py checks that its target exists.
"""

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
EXCLUDED = "guides/plugin-example"  # a package to copy; mkdocs.yml leaves it out


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the page's Markdown without links to files that the site does not have."""
    docs = Path(config["docs_dir"]).resolve()
    folder = (docs / page.file.src_uri).parent

    def text_or_link(match: re.Match[str]) -> str:
        path = match[2].partition("#")[0]
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        target = (folder / path).resolve()
        on_site = target.is_relative_to(docs) and not target.is_relative_to(docs / EXCLUDED)
        return match[0] if on_site else match[1]

    return LINK.sub(text_or_link, markdown)
