"""What a checkpoint records of each file beside it: the number of bytes written so far, and their hash."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from pagefl.core.errors import UserError

Claim = dict[str, Any]  # size, and sha256 of that many bytes


def claim_of(content: bytes) -> Claim:
    return {"size": len(content), "sha256": sha256(content).hexdigest()}


def held(directory: Path, facts: Mapping[str, Any]) -> dict[str, bytes]:
    """The recorded part of each file. Raises if it has changed. What follows it is ignored."""
    claims: dict[str, Claim] = facts.get("records", {})
    if "sizes" in facts:  # version 0.1.0 recorded only sizes
        claims = {name: {"size": size} for name, size in facts["sizes"].items()}
    if not claims:
        raise UserError(f"{directory}: its checkpoint is a stage's, and not the run's; {way_out(directory)}")
    return {name: _checked(directory / name, claim) for name, claim in claims.items()}


def _checked(path: Path, claim: Claim) -> bytes:
    size = claim["size"]
    if not size and not path.exists():
        return b""
    if not path.is_file():
        raise UserError(
            f"{path} is missing, but the checkpoint counts {size} bytes of it; {way_out(path.parent)}"
        )
    if (present := path.stat().st_size) < size:
        raise UserError(
            f"{path} has {present} bytes, but the checkpoint counts {size}; {way_out(path.parent)}"
        )
    with path.open("rb") as file:
        content = file.read(size)
    if "sha256" in claim and claim != claim_of(content):
        raise UserError(f"{path} is not as it was written: its checksum differs; {way_out(path.parent)}")
    return content


def way_out(directory: Path) -> str:
    return f"restore the file, or start over with `pagefl resume {directory} --restart`"
