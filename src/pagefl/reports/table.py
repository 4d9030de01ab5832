"""Table: rows of text, for the terminal, as Markdown, LaTeX and CSV; and the cells of numbers."""

import csv
import io
from dataclasses import dataclass
from math import isnan

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from pagefl.experiments.statistics import ENOUGH, Difference

DASH = "–"


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]]

    def terminal(self) -> RichTable:
        table = RichTable(
            title=Text(_printable(self.title)), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
        )
        for number, column in enumerate(self.columns):
            table.add_column(Text(column), justify="right" if number else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, map(_printable, row)))
        return table

    def markdown(self) -> str:
        cells = [[_printable(cell).replace("|", r"\|") for cell in row] for row in self.rows]
        lines = [
            " | ".join(self.columns),
            "|".join(["---"] * len(self.columns)),
            *(" | ".join(row) for row in cells),
        ]
        return "\n".join([f"## {_printable(self.title)}", "", *(f"| {line} |" for line in lines), ""])

    def latex(self) -> str:
        body = " \\\\\n".join(" & ".join(map(_tex, row)) for row in self.rows)
        head = " & ".join(map(_tex, self.columns))
        shape = "l" + "r" * (len(self.columns) - 1)
        return (
            f"% {self.title}\n\\begin{{tabular}}{{{shape}}}\n\\hline\n{head} \\\\\n\\hline\n{body} "
            "\\\\\n\\hline\n"
            f"\\end{{tabular}}\n"
        )

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [["table", *self.columns], *([self.title, *row] for row in self.rows)]
        )
        return text.getvalue()


def spread(mean: float, std: float, form: str) -> str:
    if isnan(mean):
        return DASH
    return f"{mean:{form}}" + ("" if isnan(std) else f" ± {std:{form}}")


def gained(found: Difference, versus: str = "") -> str:
    """A difference in percentage points, with its interval and verdict, if there is one."""
    if isnan(found.mean):
        return DASH
    gain = f"{100 * found.mean:+.2f}{versus}"
    if not isnan(found.low):
        return f"{gain} [{100 * found.low:+.2f}, {100 * found.high:+.2f}]: {found.verdict}"
    few = f"seeds: {found.seeds}, at least {ENOUGH} needed"
    return f"{gain} ({few if found.seeds < ENOUGH else 'the same on every seed: no interval'})"


def _printable(cell: str) -> str:
    """The cell without line breaks and control characters. Names may come from someone else's spec file."""
    return "".join(character if character.isprintable() else "�" for character in cell)


def _tex(cell: str) -> str:
    for plain, tex in (
        ("\\", r"\textbackslash "),
        ("±", r"$\pm$"),
        ("–", "--"),
        ("%", r"\%"),
        ("_", r"\_"),
        ("&", r"\&"),
    ):
        cell = cell.replace(plain, tex)
    return cell
