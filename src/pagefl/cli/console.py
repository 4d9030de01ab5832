"""Where commands speak: results on stdout, everything else on stderr; and the options that several have."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

# What users name is printed as it is: [/b] is no markup, :smile: no emoji, and a long path is never broken.
console = Console(markup=False, emoji=False)
err = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)

Json = Annotated[bool, typer.Option("--json", help="Print a summary as JSON on stdout.")]
Quick = Annotated[bool, typer.Option("--quick", help="Toy size, to see that it works.")]


def show_result(result: dict[str, Any], table: Table, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
    else:
        console.print(table)
