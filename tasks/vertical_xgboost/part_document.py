"""A party's part of a model as JSON: its form, its checksum, and what is wrong with another one.

A file holds ``format``, ``version``, ``checksum`` (SHA-256 of the part as compact JSON with sorted
keys) and ``part``. Numbers are written so that they read back to the last bit.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.classes import class_names

FORMAT = "fedapp/vertical-xgboost-part"
VERSION = 3
"""Version 1 were arrays of NumPy; version 2, which can be read, has one margin a row."""

Setting = bool | int | float | str
_Count = Annotated[int, Field(ge=0)]


class _Form(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
    )


class SplitForm(_Form):
    """A split: whose it is, and the number of its record there; sides are at the owner."""

    node: _Count
    source: str
    record: _Count
    missing_left: bool


class LeafForm(_Form):
    """A leaf: weight, not times eta; sum of Hessians over the party's own training rows."""

    node: _Count
    weight: FiniteFloat
    own_cover: Annotated[FiniteFloat, Field(ge=0)]


class TreeForm(_Form):
    """A tree: splits in the order in which they were made, leaves ascending."""

    splits: list[SplitForm]
    leaves: list[LeafForm]


class RecordForm(_Form):
    """A row of the look-up table; no threshold: every value that is present goes left."""

    record: _Count
    column: _Count
    threshold: FiniteFloat | None
    missing_left: bool


class CategoriesForm(_Form):
    """A column of text: how it became features, and its categories in their order."""

    column: str
    coding: Literal["sorted", "one-hot"]
    names: list[str]


class ReleasesForm(_Form):
    """Noisy weights that sources have received: sensitivity over sigma, and how many."""

    ratio: Annotated[FiniteFloat, Field(gt=0)]
    count: Annotated[int, Field(ge=1)]


class OriginForm(_Form):
    """How the part came about: trees of an earlier model, noisy releases, digest of the rows."""

    trees_before: _Count = 0
    releases: list[ReleasesForm] = Field(default_factory=list)
    rows: str = ""
    is_complete: bool = True


class PartForm(_Form):
    """Everything that a party keeps of a model."""

    run: str
    party: str
    parties: list[str]
    code: str
    settings: dict[str, Setting]
    features: list[str]
    objective: str
    base_margins: Annotated[list[FiniteFloat], Field(min_length=1)]
    eta: FiniteFloat
    trees: list[TreeForm]
    records: list[RecordForm]
    categories: list[CategoriesForm] = Field(default_factory=list)
    origin: OriginForm = Field(default_factory=OriginForm)

    def check(self) -> None:
        """Refuse what no training leaves.

        Raises
        ------
        ValueError
            With the first thing that is wrong.
        """
        if self.party not in self.parties or self.parties != sorted(set(self.parties)):
            raise ValueError("parties")
        classes = class_names(str(self.settings.get("classes", "")))
        if len(self.base_margins) != (len(classes) or 1):
            raise ValueError("margins before the first tree")
        owned, num_roots = 0, len(self.base_margins)
        for tree in self.trees:
            splits = [split.node for split in tree.splits]
            leaves = [leaf.node for leaf in tree.leaves]
            reached = set(range(num_roots + 2 * len(splits)))
            if set(splits) & set(leaves) or {*splits, *leaves} != reached:
                raise ValueError("nodes of a tree")
            if len(splits) + len(leaves) != len(reached):
                raise ValueError("nodes of a tree")
            for at, node in enumerate(splits):
                if node >= num_roots + 2 * at:
                    raise ValueError("a split in front of its parent")
            for split in tree.splits:
                if split.source not in self.parties:
                    raise ValueError("a split of no party")
                if split.source == self.party:
                    if split.record != owned:
                        raise ValueError("record of a split")
                    owned += 1
        if [each.record for each in self.records] != list(range(owned)):
            raise ValueError("records")
        if any(each.column >= len(self.features) for each in self.records):
            raise ValueError("column of a record")
        for each in self.categories:
            one_hot = [f"{each.column}={name}" for name in each.names]
            made = [each.column] if each.coding == "sorted" else one_hot
            if len(set(each.names)) < len(each.names) or not set(made) <= set(self.features):
                raise ValueError("categories")
        if self.origin.trees_before > len(self.trees):
            raise ValueError("trees of an earlier model")


def write_document(part: PartForm) -> str:
    """Text of the file of a part."""
    document = part.model_dump(by_alias=True)
    head = {"format": FORMAT, "version": VERSION, "checksum": _checksum(document)}
    return json.dumps({**head, "part": document}, ensure_ascii=False, allow_nan=False) + "\n"


def read_document(text: str, *, what: str) -> PartForm:
    """Read the text of a file.

    Parameters
    ----------
    text : str
    what : str
        The file, for faults.

    Raises
    ------
    SiteFault
        ``"bad-model-part"``: no such file, of another version, altered, or damaged.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise _bad(what, "is not JSON: it was altered or is not whole") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _bad(what, "is not a party's part of a vertical model")
    version = document.get("version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise _bad(what, "has no version")
    if version > VERSION:
        raise _bad(what, f"is of version {version}, newer than this software's ({VERSION})")
    if version not in (2, VERSION):
        raise _bad(what, f"is of version {version}; 2 and {VERSION} can be read")
    part = document.get("part")
    if not isinstance(part, dict) or _checksum(part) != document.get("checksum"):
        raise _bad(what, "was altered: its checksum is another one")
    if version == 2 and "base-margin" in part:
        part = {**part, "base-margins": [part["base-margin"]]}
        del part["base-margin"]
    try:
        read = PartForm.model_validate(part)
        read.check()
    except ValidationError as error:
        place = ".".join(str(step) for step in error.errors()[0]["loc"])
        raise _bad(what, f"has a field of another form ({place})") from None
    except ValueError as error:
        raise _bad(what, f"holds what no training leaves ({error})") from None
    return read


def digest_of(document: dict[str, Any]) -> bytes:
    """SHA-256 of a JSON document as compact text with sorted keys; 32 bytes."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


def threshold_of(value: float | None) -> float:
    """Threshold of a record as a number."""
    return math.inf if value is None else value


def _checksum(part: dict[str, Any]) -> str:
    return digest_of(part).hex()


def _bad(what: str, why: str) -> SiteFault:
    return SiteFault("bad-model-part", f"{what}: {why}")
