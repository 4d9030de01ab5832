"""Output of commands: results on stdout, everything else on stderr. Also options that commands share."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

# Names from users are printed as they are: without markup and emoji, and without breaking long paths.
console = Console(markup=False, emoji=False)
err = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)

Json = Annotated[bool, typer.Option("--json", help="Print a summary as JSON on stdout.")]
Quick = Annotated[bool, typer.Option("--quick", help="Toy size, to see that it works.")]


def show_result(result: dict[str, Any], table: Table, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
    else:
        console.print(table)
