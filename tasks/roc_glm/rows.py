"""From the label and score columns of a site to the sorted scores of its two classes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tasks.roc_glm.survivor import FloatArray
from tasks.site.faults import SiteFault
from tasks.site.name_lists import some_names

_MOST_GROUPS = 5


@dataclass(frozen=True)
class RocRows:
    """The scores of a site by class.

    Attributes
    ----------
    negative, positive : (n0,) and (n1,) float64
        Finite scores in ascending order; either may be empty.
    dropped : int
        Rows left out because a label or score was missing.
    """

    negative: FloatArray
    positive: FloatArray
    dropped: int = 0

    @property
    def num_negative(self) -> int:
        """Number of negatives, n0."""
        return len(self.negative)

    @property
    def num_positive(self) -> int:
        """Number of positives, n1."""
        return len(self.positive)

    @property
    def in_unit_interval(self) -> bool:
        """Whether every score lies in [0, 1]: the one bit about their range that may travel."""
        filled = [scores for scores in (self.negative, self.positive) if len(scores)]
        return all(scores[0] >= 0.0 and scores[-1] <= 1.0 for scores in filled)


@dataclass(frozen=True)
class LabelCoding:
    """How a site spells the two classes; the server compares the spellings of all sites.

    Attributes
    ----------
    positive : str
        The declared positive label in canonical spelling.
    negative : str or None
        The negative one; None where the site has no negative row and none was declared.
    """

    positive: str
    negative: str | None


def read_rows(
    labels: Iterable[Any],
    scores: Iterable[Any],
    *,
    positive_label: str,
    negative_label: str = "",
    missing: Literal["error", "drop"] = "error",
) -> tuple[RocRows, LabelCoding]:
    """Decode labels, check scores and split them by class.

    Labels may be bool, int, float or string; ``1``, ``1.0``, ``"1"``, ``True`` and ``"true"`` are
    one spelling. Without `negative_label` the one other value of the column is the negative label;
    a second other value is undeclared and refused.

    Parameters
    ----------
    labels, scores : iterable
        Columns of equal length. A score that is NaN or infinite counts as missing, and so does a
        label that is None, NaN or an empty string.
    positive_label, negative_label : str
        Declared for all sites alike; "" leaves the negative one to be found.
    missing : {"error", "drop"}
        Refuse rows with a missing label or score, or leave them out and count them.

    Raises
    ------
    SiteFault
        ``"bad-rows"``: all faults at once, with counts and never with a value of a row.
    """
    columns = list(labels) if not isinstance(labels, np.ndarray) else labels
    spelled = spell_labels(columns)
    values, faults = _numbers(scores)
    if not faults and len(values) != len(spelled):
        faults.append(f"{len(spelled)} labels, but {len(values)} scores")
    if faults:
        raise SiteFault("bad-rows", *faults)

    coding, faults = _coding(spelled, positive_label, negative_label)
    no_label = spelled == ""
    no_score = ~np.isfinite(values)
    if missing == "error":
        allowed = "missing = 'error' (allowed: 'drop')"
        if no_label.any():
            faults.append(f"{int(no_label.sum())} rows have no label; {allowed}")
        if no_score.any():
            faults.append(f"{int(no_score.sum())} rows have a NaN or infinite score; {allowed}")
    if faults:
        raise SiteFault("bad-rows", *faults)

    kept = ~(no_label | no_score)
    positive = spelled == coding.positive
    rows = RocRows(
        negative=np.sort(values[kept & ~positive]),
        positive=np.sort(values[kept & positive]),
        dropped=int(len(values) - kept.sum()),
    )
    return rows, coding


def coding_faults(codings: Mapping[str, LabelCoding]) -> list[str]:
    """Sites that do not mean the same two labels, by name; checked at the server.

    Parameters
    ----------
    codings : mapping of site name to LabelCoding
        A site without negative rows agrees with every spelling of the negative label.
    """
    by_spelling: dict[str, list[str]] = {}
    for site, coding in sorted(codings.items()):
        if coding.negative is not None:
            by_spelling.setdefault(coding.negative, []).append(site)
    if len(by_spelling) < 2:
        return []
    groups = " / ".join(some_names(sites) for sites in list(by_spelling.values())[:_MOST_GROUPS])
    if len(by_spelling) > _MOST_GROUPS:
        groups += f" / {len(by_spelling) - _MOST_GROUPS} more spellings"
    return [f"sites spell the negative label differently: {groups}; declare negative-label"]


def declared_coding(positive_label: str, negative_label: str = "") -> LabelCoding:
    """The two declared labels in canonical spelling; None where the negative one is not."""
    return LabelCoding(_spelling(positive_label), _spelling(negative_label) or None)


def spell_labels(labels: Iterable[Any]) -> NDArray[np.str_]:
    """Canonical spelling of each label; "" for a missing one.

    Parameters
    ----------
    labels : iterable of length n

    Returns
    -------
    (n,) array of str

    Raises
    ------
    SiteFault
        ``"bad-rows"`` if one is a list or the like.
    """
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "biuf":
        different, place = np.unique(labels, return_inverse=True)
        return np.array([_spelling(value) for value in different.tolist()] or [""])[place]
    found: dict[Any, str] = {}
    spelled = []
    for label in labels:
        if not isinstance(label, Hashable):
            raise SiteFault("bad-rows", "labels are not bool, number or text")
        if label not in found:
            found[label] = _spelling(label)
        spelled.append(found[label])
    return np.array(spelled, dtype=np.str_)


def _spelling(label: Any) -> str:
    if label is None:
        return ""
    text = str(label).strip()
    if text.lower() in ("true", "false"):
        return "1" if text.lower() == "true" else "0"
    if not isinstance(label, str) and text.lower() in ("nan", "<na>", "nat"):
        return ""
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if math.isfinite(number) and number == int(number) else repr(number)


def _numbers(scores: Iterable[Any]) -> tuple[FloatArray, list[str]]:
    """Scores as doubles, and what is wrong with their type."""
    try:
        column = scores if isinstance(scores, np.ndarray) else np.asarray(list(scores))
    except ValueError:  # lists of different lengths
        return np.empty(0), ["scores are not numbers"]
    if column.ndim != 1:
        return np.empty(0), [f"scores have {column.ndim} dimensions; allowed is one number a row"]
    if column.dtype.kind == "c":
        return np.empty(0), ["scores are complex numbers; allowed are real ones"]
    try:
        return column.astype(np.float64), []
    except (TypeError, ValueError):
        # The library's message holds the value, so it is not passed on.
        return np.empty(0), ["scores are not numbers"]


def _coding(
    spelled: NDArray[np.str_], positive_label: str, negative_label: str
) -> tuple[LabelCoding, list[str]]:
    """The coding of a site, and what of its labels is undeclared."""
    positive, negative = _spelling(positive_label), _spelling(negative_label)
    if positive == "":
        return LabelCoding(positive, None), [f"positive-label = '{positive_label}': is no label"]
    if positive == negative:
        return LabelCoding(positive, negative), [
            f"negative-label = '{negative_label}': is the positive label too"
        ]
    other = (spelled != positive) & (spelled != "")
    if negative:
        undeclared = (other & (spelled != negative)).any()
        faults = (
            [
                f"rows have a label that is neither positive-label = "
                f"'{positive_label}' nor negative-label = '{negative_label}'"
            ]
            if undeclared
            else []
        )
        return LabelCoding(positive, negative), faults
    different = np.unique(spelled[other])
    if len(different) > 1:
        return LabelCoding(positive, None), [
            f"several different labels beside positive-label = '{positive_label}'; "
            "allowed is 1: declare negative-label"
        ]
    return LabelCoding(positive, str(different[0]) if len(different) else None), []
