"""The page as one file: style and scripts are inside, nothing is fetched from elsewhere.

A browser runs only the script and the style whose hashes are in the policy, so text from a run can never become code.
"""

import base64
import hashlib
from dataclasses import dataclass
from importlib.resources import files

STYLES = ("page.css",)
SCRIPTS = ("draw.js", "state.js", "choose.js", "proof.js", "attack.js", "page.js")


@dataclass(frozen=True)
class Page:
    """The text of the page and the policy under which a browser shows it."""

    text: str
    policy: str


def build_page() -> Page:
    """Return the page, the same for every run: what it shows, it asks for."""
    style, script = (f"\n{_joined(names)}" for names in (STYLES, SCRIPTS))
    text = _joined(("page.html",))
    text = text.replace("<style></style>", f"<style>{style}</style>")
    text = text.replace("<script></script>", f"<script>{script}</script>")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(text, policy)


def _joined(names: tuple[str, ...]) -> str:
    folder = files("bronet.web")
    return "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
