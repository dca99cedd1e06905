"""A party's part of a trained model: shape and leaves of all trees, thresholds of its own splits.

A file of plain arrays (NumPy's ``.npz``, read without pickle).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.party import KnownTree, Party
from tasks.vertical_xgboost.party_arrays import trees_from_arrays, trees_to_arrays
from tasks.vertical_xgboost.rows import PartyTable
from tasks.vertical_xgboost.tree import LookupTable, Record

_VERSION = 1


@dataclass(frozen=True, eq=False)
class ModelPart:
    """What one party keeps.

    Parameters
    ----------
    name : str
        The party's.
    names : tuple of str
        All parties, in the order of places.
    feature_names : tuple of str
        Own columns.
    base_margin, eta : float
    trees : tuple of KnownTree
        Those that are kept.
    lookup : LookupTable
        Own splits by record.
    """

    name: str
    names: tuple[str, ...]
    feature_names: tuple[str, ...]
    base_margin: float
    eta: float
    trees: tuple[KnownTree, ...]
    lookup: LookupTable

    def first(self, num_trees: int) -> ModelPart:
        """The part of a model of so many trees, with no threshold that only later trees use."""
        trees, place = self.trees[:num_trees], self.names.index(self.name)
        used = sum(split.source == place for tree in trees for split in tree.splits.values())
        return replace(self, trees=trees, lookup=LookupTable(self.lookup.records[:used]))

    def save(self, path: Path) -> None:
        """Write the part; readable by its owner only, never half a file."""
        records = [[r.column, r.threshold, r.missing_left] for r in self.lookup.records]
        arrays = {
            "version": np.array([_VERSION]),
            "name": np.array([self.name]),
            "names": np.array(self.names),
            "feature-names": np.array(self.feature_names, dtype=np.str_),
            "numbers": np.array([self.base_margin, self.eta]),
            "num-trees": np.array([len(self.trees)]),
            "records": np.array(records, dtype=np.float64).reshape(-1, 3),
            **trees_to_arrays(self.trees),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.part")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as to:
            np.savez(to, **arrays)  # type: ignore[arg-type]  # numpy types it as allow_pickle
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> ModelPart:
        """Read what `save` wrote; ValueError, KeyError or OSError if it is something else."""
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        if arrays["version"].tolist() != [_VERSION]:
            raise ValueError("a model part of another version")
        base_margin, eta = arrays["numbers"].tolist()
        records = [Record(int(c), float(t), bool(m)) for c, t, m in arrays["records"].tolist()]
        return cls(
            name=str(arrays["name"][0]),
            names=tuple(arrays["names"].tolist()),
            feature_names=tuple(arrays["feature-names"].tolist()),
            base_margin=base_margin,
            eta=eta,
            trees=tuple(trees_from_arrays(arrays, num_trees=int(arrays["num-trees"][0]))),
            lookup=LookupTable(records),
        )


def check_model_dir(model_dir: str) -> None:
    """Refuse to take part where the part of the model could not be kept.

    Parameters
    ----------
    model_dir : str
        ``model-dir`` of the node configuration; made if it is not there.

    Raises
    ------
    SiteFault
        ``"no-model-dir"``.
    """
    if not model_dir:
        raise SiteFault(
            "no-model-dir",
            'node config "model-dir" is missing: this party could not keep its part of the model; '
            "give its SuperNode a folder",
        )
    folder = Path(model_dir).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or type(error).__name__
        raise SiteFault(
            "no-model-dir", f'node config "model-dir": no file can be written there ({words})'
        ) from None


def part_path(folder: str | Path, name: str) -> Path:
    """File of a party's part in a folder."""
    return Path(folder) / f"{name}.npz"


def keep_part(
    party: Party,
    table: PartyTable,
    *,
    names: Sequence[str],
    num_trees: int,
    folder: str,
    model_dir: str,
    run: str,
) -> None:
    """Write a party's part of the model where it is kept.

    Parameters
    ----------
    party : Party
    table : PartyTable
    names : sequence of str
        All parties.
    num_trees : int
        Trees to keep.
    folder : str
        Simulation only: in the run folder; ``""``: none.
    model_dir : str
        ``model-dir`` of the node configuration; ``""``: none.
    run : str
    """
    name = names[party.place]
    part = ModelPart(
        name=name,
        names=tuple(names),
        feature_names=table.feature_names,
        base_margin=party.base_margin,
        eta=party.config.eta,
        trees=tuple(party.finished),
        lookup=party.lookup,
    )
    for path in _paths(name, folder=folder, model_dir=model_dir, run=run):
        part.first(num_trees).save(path)


def trim_part(name: str, *, num_trees: int, folder: str, model_dir: str, run: str) -> None:
    """Keep fewer trees of a part that `keep_part` wrote; parameters as there.

    Raises
    ------
    SiteFault
        ``"bad-request"`` unless they are 1 or more and fewer.
    """
    for path in _paths(name, folder=folder, model_dir=model_dir, run=run):
        part = ModelPart.load(path)
        if not 0 < num_trees < len(part.trees):
            raise SiteFault("bad-request", f"{num_trees} trees to keep of {len(part.trees)}")
        part.first(num_trees).save(path)


def _paths(name: str, *, folder: str, model_dir: str, run: str) -> list[Path]:
    found = [part_path(folder, name)] if folder else []
    if model_dir:
        where = Path(model_dir).expanduser() / "vertical-xgboost" / run
        found.append(part_path(where, name))
    return found
