"""What the site needs beyond the pages of this folder: pages and pictures that live elsewhere, and inline drawings.

Pages link to files of the repository as they lie there, so that they read well on any host of the source; the site
takes copies of those files in and turns the links to them. Drawings (SVG) are set into the page itself, their few
named colours replaced by the theme's, so that they follow it from light to dark.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from lab.figures.canvas import COLOURS  # noqa: E402

PAGES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Pages at the root of the repository, by the name they have on the site."""
PICTURES = re.compile(r"\]\(\.\./(lab/results/[\w./-]+)\)")
CELL = re.compile(r"<td.*?</td>|<th.*?</th>", re.S)
BETWEEN_NUMBERS = re.compile(r"(?<=[\dn]) / (?=[+-]?\d)")
DRAWING = re.compile(r'<img alt="([^"]*)" src="(figures/[\w-]+\.svg)" ?/?>')
NOTEBOOK = re.compile(r"\]\(notebooks/(\w+)\.ipynb\)")
PICTURE = re.compile(r"<p>(<img [^>]*>)</p>")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the root, the notebooks as pages, and every file of lab/results that a page links to."""
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_text(path)))
    for name, source in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    wanted = {name for page in (ROOT / "docs").glob("*.md") for name in PICTURES.findall(page.read_text("utf-8"))}
    for name in sorted(wanted):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def notebook_text(path: Path) -> str:
    """Return a notebook as a page: its text, its code, and a link to itself."""
    title, *cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = ["".join(title["source"]), f"[Download this notebook]({path.name}) and run it, or copy the blocks below."]
    for cell in cells:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that are right in the repository into links that are right on the site."""
    if page.file.src_uri in PAGES:
        markdown = markdown.replace("](docs/", "](")
    markdown = markdown.replace("](../CONTRIBUTING.md", "](contributing.md").replace(
        "](../CHANGELOG.md", "](changelog.md"
    )
    return NOTEBOOK.sub(r"](notebooks/\1.md)", PICTURES.sub(r"](\1)", markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Set drawings and pictures into the page, and keep numbers that belong together in one line of a table's cell."""
    html = CELL.sub(lambda match: BETWEEN_NUMBERS.sub("\u00a0/\u00a0", match[0]), html)
    html = DRAWING.sub(lambda match: inlined(ROOT / "docs" / match[2], alt=match[1]), html)
    return PICTURE.sub(r'<div class="figure">\1</div>', html)


def inlined(path: Path, *, alt: str) -> str:
    """Return a drawing as an element of a page, in the theme's colours."""
    text = path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--figure-{name})")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = text.replace("<svg ", f'<svg role="img" aria-label="{alt}" ', 1)
    return f'<div class="figure">{text}</div>'
