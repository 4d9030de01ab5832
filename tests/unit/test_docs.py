"""Examples in the README and in docs run as they stand."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from pagefl.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: str(p.relative_to(ROOT))
)
def test_python_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), names)


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SCRIPTS = sorted((ROOT / "docs" / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path, tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # the site executes them
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()


@pytest.mark.slow
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_of_the_gallery_run(path, tmp_path):
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([sys.executable, path], check=True, cwd=tmp_path, env={**os.environ, "PATH": programs})


def test_every_script_is_in_the_gallery():
    page = (ROOT / "docs" / "gallery.md").read_text()
    assert [path.name for path in SCRIPTS] == sorted(set(re.findall(r"examples/(\w+\.py)", page)))


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p, "console")], ids=lambda p: str(p.relative_to(ROOT))
)
def test_commands_exist_with_these_options(page):
    command = typer.main.get_command(app)
    for line in "".join(blocks(page, "console")).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] != ["pagefl"]:
            continue
        known, rest = command, words[1:]
        while rest and rest[0] in getattr(known, "commands", {}):
            known, rest = known.commands[rest[0]], rest[1:]
        options = {name for parameter in known.params for name in parameter.opts}
        used = {word.split("=")[0] for word in rest if word.startswith("--")}
        assert used <= options, (line, used - options)


def test_links_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), (page, link)


def test_specs_in_docs_are_valid():
    import tomllib

    from pagefl.experiments import spec as specs
    from pagefl.experiments import sweep

    for page in PAGES:
        for block in blocks(page, "toml"):
            raw = tomllib.loads(block)
            assert sweep.grid(raw) if "sweep" in raw else specs.resolve(raw)


def test_the_map_of_the_architecture_page_is_the_tree():
    source = ROOT / "src" / "pagefl"
    page = (ROOT / "docs" / "architecture.md").read_text()
    told = set(re.findall(r"^\| `([a-z/]+)` \|", page.partition("## Map")[2], re.MULTILINE))
    folders = {str(path.parent.relative_to(source)) for path in source.rglob("__init__.py")} - {"."}
    assert told == folders


def test_every_page_can_be_reached_from_the_index():
    seen, waiting = set(), [ROOT / "docs" / "index.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        waiting += [page.parent / link for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())]
    missing = {page.resolve() for page in (ROOT / "docs").rglob("*.md")} - seen
    assert not {page for page in missing if "laptop" not in page.parts}, missing
