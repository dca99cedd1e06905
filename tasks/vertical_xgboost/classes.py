"""The classes of ``multi:softprob``: how they are declared, and how labels are spelled."""

from __future__ import annotations

import math
from typing import Any

MOST_CLASSES = 100


def spelling(label: Any) -> str:
    """Canonical spelling of a label; "" for a missing one."""
    if label is None:
        return ""
    text = str(label).strip()
    if isinstance(label, bool) or text.lower() in ("true", "false"):
        return "1" if text.lower() == "true" else "0"
    if not isinstance(label, str) and text.lower() in ("nan", "<na>", "nat"):
        return ""
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if math.isfinite(number) and number == int(number) else repr(number)


def class_names(declared: str) -> tuple[str, ...]:
    """Names of classes as they were declared, class 0 first; none of an empty text."""
    return tuple(each.strip() for each in declared.split(",")) if declared.strip() else ()


def classes_faults(declared: str, *, wanted: bool) -> list[str]:
    """What is wrong with a declaration of classes.

    Parameters
    ----------
    declared : str
        Names with commas between them.
    wanted : bool
        Whether the objective has classes to declare.
    """
    if not wanted:
        allowed = "allowed with objective = 'multi:softprob'"
        return [f"classes = '{declared}': {allowed}"] if declared else []
    names = class_names(declared)
    if not 2 <= len(names) <= MOST_CLASSES or "" in names:
        return [
            f"classes = '{declared[:80]}' with objective = 'multi:softprob': allowed are 2 to "
            f"{MOST_CLASSES} spellings of labels with commas between them, class 0 first"
        ]
    if len({spelling(name) for name in names}) < len(names):
        return [f"classes = '{declared[:80]}': must differ from one another (1 and 1.0 are one)"]
    return []
