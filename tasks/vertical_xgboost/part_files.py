"""Where a party keeps its parts of models: in its own folder, in a simulation in the run folder."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.model_part import ModelPart, part_path
from tasks.vertical_xgboost.origin import Origin
from tasks.vertical_xgboost.part_tree import PartSplit, PartTree
from tasks.vertical_xgboost.partial_dp import spent_releases
from tasks.vertical_xgboost.party import KnownTree, Party
from tasks.vertical_xgboost.routing import num_records
from tasks.vertical_xgboost.site import VerticalSite
from tasks.vertical_xgboost.tree import LookupTable

_RUN = re.compile(r"run-\d{1,20}")

NOT_KEPT = ("data", "model", "mode", "warm_start")
"""Settings that say nothing of how trees were grown."""


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


def own_part(
    model: str,
    *,
    name: str,
    simulated: bool,
    model_dir: str,
    key: str = "vertical-xgboost.model",
) -> ModelPart:
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
    key : str
        Of the configuration, that names the model; with ``"resume"`` an unfinished one.

    Raises
    ------
    SiteFault
        ``"no-model-part"`` with what is missing, ``"bad-model-part"`` for a part of another party
        or run, or as `ModelPart.load`.
    """
    unfinished = key == "resume"
    if simulated:
        path = part_path(Path(model).expanduser() / "parties", name)
        part = ModelPart.load(path, unfinished=unfinished)
    else:
        if not _RUN.fullmatch(model):
            raise SiteFault(
                "no-model-part",
                f'{key} = "{model[:80]}": must be the name of a training run, '
                'as "run-123" (its summary has it)',
            )
        if not model_dir:
            raise SiteFault("no-model-dir", 'node config "model-dir" is missing: no part is there')
        shown = f"vertical-xgboost/{model}/{name}.json in model-dir"
        path = part_path(run_dir(model_dir, model), name)
        part = ModelPart.load(path, shown=shown, unfinished=unfinished)
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
    rows: str,
    is_complete: bool,
) -> list[Path]:
    """Write a party's part of the model where it is kept, and return where that is.

    Parameters
    ----------
    party : Party
    site : VerticalSite
    names : sequence of str
        All parties.
    num_trees : int
        Trees to keep, those of the model that the training went on from among them.
    folder : str
        Simulation only: in the run folder; ``""``: none.
    run : str
    rows : str
        Digest of the party's rows.
    is_complete : bool
        Whether the training is at its end.
    """
    earlier, finished = site.part, party.finished
    trees: tuple[PartTree, ...] = () if earlier is None else earlier.trees
    records = [] if earlier is None else earlier.lookup.records
    num_roots = len(party.base_margins)
    first = {name: 0 if earlier is None else num_records(earlier, name) for name in names}
    part = ModelPart(
        run=run,
        name=site.name,
        names=tuple(names),
        feature_names=site.table.feature_names,
        objective=party.config.objective,
        base_margins=party.base_margins,
        eta=party.config.eta,
        trees=(*trees, *(_known_tree(tree, names, first, num_roots) for tree in finished)),
        lookup=LookupTable([*records, *party.lookup.records]),
        code=site.code,
        categories=site.table.categories,
        settings=party.config.model_dump(by_alias=True, exclude=set(NOT_KEPT)),
        origin=_origin(site, rows=rows, is_complete=is_complete),
    )
    paths = _paths(site.name, folder=folder, model_dir=site.model_dir, run=run)
    for path in paths:
        part.first(num_trees).save(path)
    return paths


def keep_resumed(site: VerticalSite, *, folder: str, run: str, rows: str) -> None:
    """Write the trees with which a resumed training begins; parameters as of `keep_part`."""
    assert site.part is not None, "the training is a resumed one"
    origin = _origin(site, rows=rows, is_complete=False)
    part = replace(site.part, run=run, code=site.code, origin=origin)
    for path in _paths(site.name, folder=folder, model_dir=site.model_dir, run=run):
        part.save(path)


def unfinish(path: Path) -> None:
    """Say of a part that its training has not come to its end after all."""
    part = ModelPart.load(path, unfinished=True)
    replace(part, origin=replace(part.origin, is_complete=False)).save(path)


def _origin(site: VerticalSite, *, rows: str, is_complete: bool) -> Origin:
    earlier = site.part
    if earlier is not None and site.resumes:
        return replace(earlier.origin, rows=rows, is_complete=is_complete)
    released = () if earlier is None else earlier.origin.releases
    return Origin(site.trees_before, spent_releases(site.config, released), rows, is_complete)


def _known_tree(
    tree: KnownTree, names: Sequence[str], first: Mapping[str, int], num_roots: int
) -> PartTree:
    """A tree of this run, records counted on from those of the trees before."""
    splits = {}
    for node, split in tree.splits.items():
        name = names[split.source]
        splits[node] = PartSplit(name, first[name] + split.record, split.candidate.missing_left)
    return PartTree(splits, tree.weights, tree.covers, num_roots)


def trim_part(name: str, *, num_trees: int, folder: str, model_dir: str, run: str) -> None:
    """Keep fewer trees of a part that `keep_part` wrote; parameters as there.

    Raises
    ------
    SiteFault
        ``"bad-request"`` unless they are fewer, and some of this training.
    """
    for path in _paths(name, folder=folder, model_dir=model_dir, run=run):
        part = ModelPart.load(path)
        if not part.origin.trees_before < num_trees < len(part.trees):
            raise SiteFault("bad-request", f"{num_trees} trees to keep of {len(part.trees)}")
        part.first(num_trees).save(path)


def _paths(name: str, *, folder: str, model_dir: str, run: str) -> list[Path]:
    found = [part_path(folder, name)] if folder else []
    if model_dir:
        found.append(part_path(run_dir(model_dir, run), name))
    return found
