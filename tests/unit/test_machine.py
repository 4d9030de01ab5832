"""Results name the commit of the code that made them."""

import subprocess
from pathlib import Path

from pagefl.runtime.machine import _commit


def git(folder: Path, *arguments: str) -> str:
    own = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder), *arguments]
    return subprocess.run(own, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_of_a_clone_and_of_its_work_trees(tmp_path):
    clone, other = tmp_path / "clone", tmp_path / "other"
    clone.mkdir()
    git(clone, "init", "-q")
    git(clone, "commit", "-q", "--allow-empty", "-m", "first")
    git(clone, "worktree", "add", "-q", str(other), "-b", "other")
    git(other, "commit", "-q", "--allow-empty", "-m", "second")
    first, second = (git(folder, "rev-parse", "HEAD") for folder in (clone, other))
    assert first != second
    assert [_commit(folder / ".git") for folder in (clone, other)] == [first, second]
    git(clone, "pack-refs", "--all")
    assert [_commit(folder / ".git") for folder in (clone, other)] == [first, second]
    git(clone, "checkout", "-q", "--detach")
    assert _commit(clone / ".git") == first
    assert _commit(tmp_path / ".git") is None
