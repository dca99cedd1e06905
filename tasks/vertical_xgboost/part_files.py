"""Where a party keeps its parts of models: in its own folder, in a simulation in the run folder."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.model_part import ModelPart, PartSplit, PartTree, part_path
from tasks.vertical_xgboost.party import KnownTree, Party
from tasks.vertical_xgboost.site import VerticalSite

_RUN = re.compile(r"run-\d{1,20}")


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


def run_dir(model_dir: str, run: str) -> Path:
    """Folder of a run in the ``model-dir`` of a node."""
    return Path(model_dir).expanduser() / "vertical-xgboost" / run


def own_part(model: str, *, name: str, simulated: bool, model_dir: str) -> ModelPart:
    """Read a party's part of a model.

    Parameters
    ----------
    model : str
        Deployed: the training, as ``run-123``, whose part is in the party's ``model-dir``. In a
        simulation the folder of that run.
    name : str
        The party's.
    simulated : bool
    model_dir : str
        Of the node configuration.

    Raises
    ------
    SiteFault
        ``"no-model-part"`` with what is missing, ``"bad-model-part"`` for a part of another party
        or run, or as `ModelPart.load`.
    """
    if simulated:
        part = ModelPart.load(part_path(Path(model).expanduser() / "parties", name))
    else:
        if not _RUN.fullmatch(model):
            raise SiteFault(
                "no-model-part",
                f'vertical-xgboost.model = "{model[:80]}": must be the name of a training run, '
                'as "run-123" (its summary has it)',
            )
        if not model_dir:
            raise SiteFault("no-model-dir", 'node config "model-dir" is missing: no part is there')
        shown = f"vertical-xgboost/{model}/{name}.json in model-dir"
        part = ModelPart.load(part_path(run_dir(model_dir, model), name), shown=shown)
        if part.run != model:
            raise SiteFault("bad-model-part", f"{shown}: is a part of {part.run}")
    if part.name != name:
        raise SiteFault("bad-model-part", f"{name}.json: is the part of {part.name}")
    return part


def keep_part(
    party: Party,
    site: VerticalSite,
    *,
    names: Sequence[str],
    num_trees: int,
    folder: str,
    run: str,
) -> None:
    """Write a party's part of the model where it is kept.

    Parameters
    ----------
    party : Party
    site : VerticalSite
    names : sequence of str
        All parties.
    num_trees : int
        Trees to keep.
    folder : str
        Simulation only: in the run folder; ``""``: none.
    run : str
    """
    part = ModelPart(
        run=run,
        name=site.name,
        names=tuple(names),
        feature_names=site.table.feature_names,
        objective=party.config.objective,
        base_margins=party.base_margins,
        eta=party.config.eta,
        trees=tuple(_known_tree(tree, names, len(party.base_margins)) for tree in party.finished),
        lookup=party.lookup,
        code=site.code,
        settings=party.config.model_dump(by_alias=True, exclude={"data", "model", "mode"}),
        categories=site.table.categories,
    )
    for path in _paths(site.name, folder=folder, model_dir=site.model_dir, run=run):
        part.first(num_trees).save(path)


def _known_tree(tree: KnownTree, names: Sequence[str], num_roots: int) -> PartTree:
    splits = {
        node: PartSplit(names[split.source], split.record, split.candidate.missing_left)
        for node, split in tree.splits.items()
    }
    return PartTree(splits, tree.weights, tree.covers, num_roots)


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
        found.append(part_path(run_dir(model_dir, run), name))
    return found
