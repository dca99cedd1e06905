"""A party's part of a trained model, and the file in which it keeps it.

Shape and leaves of all trees, whose each split is, thresholds of its own splits, and what
prediction needs of the configuration. The file is JSON (`part_document`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.categorical import Categories
from tasks.vertical_xgboost.classes import class_names
from tasks.vertical_xgboost.origin import Origin, Releases
from tasks.vertical_xgboost.part_document import (
    CategoriesForm,
    LeafForm,
    OriginForm,
    PartForm,
    RecordForm,
    ReleasesForm,
    Setting,
    SplitForm,
    TreeForm,
    digest_of,
    read_document,
    threshold_of,
    write_document,
)
from tasks.vertical_xgboost.part_tree import PartSplit, PartTree
from tasks.vertical_xgboost.tree import LookupTable, Record


@dataclass(frozen=True, eq=False)
class ModelPart:
    """What one party keeps.

    Parameters
    ----------
    run : str
        Training that left it, as ``run-123``.
    name : str
        The party's.
    names : tuple of str
        All parties, in the order of places.
    feature_names : tuple of str
        Own columns.
    objective : str
    base_margins : tuple of float
        Prediction before the first tree, one a root.
    eta : float
    trees : tuple of PartTree
        Those that are kept.
    lookup : LookupTable
        Own splits by record.
    code : str
        Fingerprint of the code that trained it.
    settings : mapping of str to (bool, int, float or str)
        Of the training.
    categories : tuple of Categories
        Of own columns of text.
    origin : Origin
        How the part came about.
    """

    run: str
    name: str
    names: tuple[str, ...]
    feature_names: tuple[str, ...]
    objective: str
    base_margins: tuple[float, ...]
    eta: float
    trees: tuple[PartTree, ...]
    lookup: LookupTable
    code: str = ""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    categories: tuple[Categories, ...] = ()
    origin: Origin = field(default_factory=Origin)

    @property
    def columns(self) -> set[str]:
        """Columns of own rows that features are made of."""
        made = {name for each in self.categories for name in each.feature_names}
        return set(self.feature_names) - made | {each.column for each in self.categories}

    @property
    def has_noise(self) -> bool:
        """Whether its weights of leaves below own splits are noisy (partial DP)."""
        return float(self.settings.get("dp-epsilon", 0.0)) > 0.0

    @property
    def depth(self) -> int:
        """Levels of splits of the deepest tree."""
        return max(max(tree.depths.values()) for tree in self.trees)

    @property
    def num_roots(self) -> int:
        """Margins of a row."""
        return len(self.base_margins)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of a model with a margin for each; else none."""
        return class_names(str(self.settings.get("classes", "")))

    @property
    def model_digest(self) -> bytes:
        """Digest of what all parts of a model have in common; 32 bytes.

        Run, parties, objective, margins before the first tree, eta, and of each tree shape and
        owners; no weights.
        """
        return model_digest(
            self.run,
            self.names,
            objective=self.objective,
            base_margins=self.base_margins,
            eta=self.eta,
            trees=[
                [(node, s.source, s.record) for node, s in tree.splits.items()]
                for tree in self.trees
            ],
        )

    def first(self, num_trees: int) -> ModelPart:
        """The part of a model of so many trees, with no threshold that only later trees use."""
        trees = self.trees[:num_trees]
        used = sum(split.source == self.name for tree in trees for split in tree.splits.values())
        return replace(self, trees=trees, lookup=LookupTable(self.lookup.records[:used]))

    def of_class(self, root: int) -> ModelPart:
        """The trees of one class alone, whose margin they give."""
        trees = tuple(tree.below(root) for tree in self.trees)
        return replace(self, trees=trees, base_margins=(self.base_margins[root],))

    def save(self, path: Path) -> None:
        """Write the part; readable by its owner only, never half a file."""
        write_private(path, self.as_text())

    def exported(self) -> ModelPart:
        """What others get of it: no settings but lambda, which gains are made of, and classes."""
        kept = ("lambda", "classes")
        settings = {key: value for key, value in self.settings.items() if key in kept}
        return replace(self, code="", settings=settings, origin=replace(self.origin, rows=""))

    def as_text(self) -> str:
        """Text of its file."""
        return write_document(self._to_form())

    @classmethod
    def from_text(cls, text: str, *, what: str) -> ModelPart:
        """Read what `as_text` gave; `what` it is, for faults. Raises as `load`."""
        return cls._from_form(read_document(text, what=what))

    @classmethod
    def load(cls, path: Path, *, shown: str = "", unfinished: bool = False) -> ModelPart:
        """Read what `save` wrote.

        Parameters
        ----------
        path : Path
        shown : str
            What faults call the file; its name if not given.
        unfinished : bool
            Whether it may be of a training that has not come to its end.

        Raises
        ------
        SiteFault
            ``"no-model-part"`` if it is not there, ``"unfinished-model-part"``, or
            ``"bad-model-part"`` if it is something else.
        """
        what = shown or path.name
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise SiteFault("no-model-part", f"{what}: this part of the model is missing") from None
        except (OSError, ValueError) as error:
            words = getattr(error, "strerror", None) or type(error).__name__
            raise SiteFault("bad-model-part", f"{what}: cannot be read ({words})") from None
        part = cls.from_text(text, what=what)
        if not part.origin.is_complete and not unfinished:
            raise SiteFault(
                "unfinished-model-part",
                f"{what}: is of a training that has not come to its end: resume that run",
            )
        return part

    def _to_form(self) -> PartForm:
        records = [
            RecordForm(
                record=at,
                column=each.column,
                threshold=each.threshold if each.threshold != float("inf") else None,
                missing_left=each.missing_left,
            )
            for at, each in enumerate(self.lookup.records)
        ]
        return PartForm(
            run=self.run,
            party=self.name,
            parties=list(self.names),
            code=self.code,
            settings=dict(self.settings),
            features=list(self.feature_names),
            objective=self.objective,
            base_margins=list(self.base_margins),
            eta=self.eta,
            trees=[_tree_form(tree) for tree in self.trees],
            records=records,
            categories=[
                CategoriesForm(column=each.column, coding=each.coding, names=list(each.names))
                for each in self.categories
            ],
            origin=_origin_form(self.origin),
        )

    @classmethod
    def _from_form(cls, form: PartForm) -> ModelPart:
        records = [
            Record(each.column, threshold_of(each.threshold), each.missing_left)
            for each in form.records
        ]
        return cls(
            run=form.run,
            name=form.party,
            names=tuple(form.parties),
            feature_names=tuple(form.features),
            objective=form.objective,
            base_margins=tuple(form.base_margins),
            eta=form.eta,
            trees=tuple(_tree_of(tree, len(form.base_margins)) for tree in form.trees),
            lookup=LookupTable(records),
            code=form.code,
            settings=form.settings,
            categories=tuple(
                Categories(each.column, each.coding, tuple(each.names)) for each in form.categories
            ),
            origin=_origin_of(form.origin),
        )


def model_digest(
    run: str,
    names: Sequence[str],
    *,
    objective: str,
    base_margins: Sequence[float],
    eta: float,
    trees: Sequence[Sequence[tuple[int, str, int]]],
) -> bytes:
    """Digest of what parties and server know alike of a model; see `ModelPart.model_digest`.

    Parameters
    ----------
    run : str
    names : sequence of str
    objective : str
    base_margins : sequence of float
    eta : float
    trees : sequence of sequence of (int, str, int)
        Node, source and record of each split, in the order in which they were made.
    """
    splits = [[list(split) for split in tree] for tree in trees]
    start = [run, list(names), objective, list(base_margins), eta]
    return digest_of({"model": [*start, splits]})


def _origin_form(origin: Origin) -> OriginForm:
    return OriginForm(
        trees_before=origin.trees_before,
        releases=[ReleasesForm(ratio=e.ratio, count=e.count) for e in origin.releases],
        rows=origin.rows,
        is_complete=origin.is_complete,
    )


def _origin_of(form: OriginForm) -> Origin:
    releases = tuple(Releases(each.ratio, each.count) for each in form.releases)
    return Origin(form.trees_before, releases, form.rows, form.is_complete)


def _tree_form(tree: PartTree) -> TreeForm:
    return TreeForm(
        splits=[
            SplitForm(node=node, source=s.source, record=s.record, missing_left=s.missing_left)
            for node, s in tree.splits.items()
        ],
        leaves=[
            LeafForm(node=node, weight=weight, own_cover=tree.covers[node])
            for node, weight in sorted(tree.weights.items())
        ],
    )


def _tree_of(form: TreeForm, num_roots: int) -> PartTree:
    return PartTree(
        {s.node: PartSplit(s.source, s.record, s.missing_left) for s in form.splits},
        {leaf.node: leaf.weight for leaf in form.leaves},
        {leaf.node: leaf.own_cover for leaf in form.leaves},
        num_roots,
    )


def exact_weights(parts: Mapping[str, ModelPart], number: int) -> dict[int, float]:
    """Weights of a tree's leaves, each of a party that is not the source of the split above it.

    With partial differential privacy that source has a noisy one; else all have the same.

    Parameters
    ----------
    parts : mapping of str to ModelPart
        Of all parties, by name.
    number : int
        Of the tree, from 0.
    """
    trees = {name: part.trees[number] for name, part in sorted(parts.items())}
    sources = next(iter(trees.values())).sources
    return {
        leaf: next(tree.weights[leaf] for name, tree in trees.items() if name != sources.get(leaf))
        for leaf in sorted(next(iter(trees.values())).weights)
    }


def write_private(path: Path, text: str) -> None:
    """Write a text file that its owner alone may read; never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with os.fdopen(os.open(partial, flags, 0o600), "w", encoding="utf-8") as to:
        to.write(text)
    partial.replace(path)


def part_path(folder: str | Path, name: str) -> Path:
    """File of a party's part in a folder."""
    return Path(folder) / f"{name}.json"
