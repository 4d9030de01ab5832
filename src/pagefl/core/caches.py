"""Where compiled code and measurements are kept between runs, if the usual places cannot be written to."""

import os
from pathlib import Path

NUMBA = "NUMBA_CACHE_DIR"


def user_cache() -> Path | None:
    """The user's folder for caches. None if there is no home, as for a service."""
    named = os.environ.get("XDG_CACHE_HOME")
    home = os.path.expanduser("~")
    return Path(named) if named else Path(home) / ".cache" if os.path.isabs(home) else None


def keep_compiled_code(package: Path) -> None:
    """Tell numba where to keep compiled code, if it can neither beside the package nor in the user's cache.

    Without any place it would refuse to compile.
    """
    usual = user_cache()
    if NUMBA not in os.environ and not writable(package) and not (usual and writable(usual)):
        os.environ[NUMBA] = str(_own_folder())


def writable(folder: Path) -> bool:
    """Whether files can be made in it, or else the folder itself."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)


def _own_folder() -> Path:
    """A temporary folder of this user alone: what lies in it is executed."""
    import tempfile

    folder = Path(tempfile.gettempdir()) / f"pagefl-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        facts = folder.lstat()
        if facts.st_uid != os.getuid() or facts.st_mode & 0o777 != 0o700 or folder.is_symlink():
            folder = Path(tempfile.mkdtemp(prefix="pagefl-"))  # somebody else has made the other
    return folder
