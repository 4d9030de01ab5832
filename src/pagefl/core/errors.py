"""What is said to a user whose input cannot be used."""


class UserError(ValueError):
    """Something the user gave cannot be used: one sentence that says what is wrong, where, and what to do."""

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(sentence))  # it may quote a stranger's file


def printable(text: str) -> str:
    """One line that a terminal only shows: line breaks and control characters are written as escapes."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def shown(value: object, most: int = 80) -> str:
    """A user's value as a sentence quotes it: never longer than a line."""
    try:
        return shortened(repr(value), most)
    except Exception:  # thousands of digits, a list in a list in a list …, or an object whose repr fails
        return f"a {type(value).__name__} too long to show"


def shortened(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
