"""The pages and what they are made of. They come with the package: nothing is built, nothing is fetched."""

from html import escape
from pathlib import Path
from string import Template

ASSETS = Path(__file__).parent / "assets"
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
TITLES = {"overview": "Runs", "run": "Run", "compare": "Compare runs", "start": "Start a run"}


def asset(name: str) -> tuple[bytes, str] | None:
    """Content and type of a file that pages load; None if there is no such file."""
    known = {path.name: path for path in ASSETS.iterdir() if path.suffix in TYPES}
    return (known[name].read_bytes(), TYPES[known[name].suffix]) if name in known else None


def page(kind: str, token: str, name: str = "") -> str:
    """A page. `token`: by which its requests are known as its own. `name`: of the run that it shows."""
    shell = Template((ASSETS / "shell.html").read_text(encoding="utf-8"))
    return shell.substitute(
        title=escape(f"{name} · pagefl" if name else f"{TITLES[kind]} · pagefl"),
        kind=kind,
        token=escape(token),
        name=escape(name),
        main=(ASSETS / f"{kind}.html").read_text(encoding="utf-8"),
    )
