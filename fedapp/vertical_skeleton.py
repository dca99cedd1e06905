"""What the server keeps of a vertical model: ``trees.json`` in the folder of its run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapp.fingerprint import code_fingerprint
from strategies.vertical_earlier import EarlierModel, model_document, model_of_document
from strategies.vertical_result import VerticalResult

SKELETON = "trees.json"

FORM = "fedapp/vertical-xgboost-skeleton"
VERSION = 1


def skeleton(result: VerticalResult) -> dict[str, Any]:
    """What the server knows of a model: no feature, threshold or weight."""
    earlier, before = result.earlier, len(result.trees_before)
    followed = {} if earlier is None else {"warm-start": earlier.run, "trees-before": before}
    return {
        "format": FORM,
        "version": VERSION,
        "code": code_fingerprint(),
        **model_document(result.model),
        **followed,
        "trees-kept": before + result.trees_to_keep,
    }


def skeleton_of(run: Path) -> dict[str, Any]:
    """What the server kept of a model, from its run folder.

    Raises
    ------
    ValueError
        With the file, if it is missing, or something else, or of a newer version.
    """
    path = run / SKELETON
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: is missing; {run} holds no trained vertical model") from None
    except (OSError, ValueError):
        raise ValueError(f"{path}: cannot be read as JSON") from None
    form = document.get("format") if isinstance(document, dict) else None
    if form != FORM:
        raise ValueError(f"{path}: is no skeleton of a vertical model")
    if document.get("version") != VERSION:
        raise ValueError(f"{path}: is of version {document.get('version')}; {VERSION} can be read")
    return dict(document)


def model_of(model: str, *, remote: bool) -> str:
    """What ``vertical-xgboost.model`` is to the parties, from what a user typed.

    Parameters
    ----------
    model : str
        Run folder, or name of a training run.
    remote : bool
        Parties are deployed: they know the name alone.

    Raises
    ------
    ValueError
        If the folder is there and has no ``trees.json`` of a training.
    """
    path = Path(model).expanduser()
    if not path.is_dir():
        return model
    name = skeleton_of(path)["run"]
    return str(name) if remote else str(path.resolve())


def kept_model(model: str, *, key: str, run_dir: Path, simulated: bool) -> EarlierModel:
    """The model that a key of the configuration names, as the server kept it.

    Parameters
    ----------
    model : str
        In a simulation the folder of its run; deployed its name, as ``run-123``.
    key : str
        That names it, for faults.
    run_dir : Path
        Folder of the run folders, in which a deployed server looks for the name.
    simulated : bool

    Raises
    ------
    ValueError
        If it is not there, with where it was looked for, or cannot be read.
    """
    folder = Path(model).expanduser() if simulated else _folder_of(model, run_dir, key=key)
    return model_from(skeleton_of(folder), folder)


def model_from(document: Mapping[str, Any], folder: Path) -> EarlierModel:
    """A skeleton as a model; ValueError with the file if something in it is missing or odd."""
    try:
        kept = int(document["trees-kept"])
        if not 0 < kept <= len(document["trees"]):
            raise ValueError("trees")
        return model_of_document({**document, "trees": document["trees"][:kept]})
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError(f"{folder / SKELETON}: holds what no training leaves") from None


def _folder_of(name: str, run_dir: Path, *, key: str) -> Path:
    base = run_dir.expanduser().resolve()
    for path in sorted(base.glob(f"*/{SKELETON}"), reverse=True):
        try:
            if skeleton_of(path.parent).get("run") == name:
                return path.parent
        except ValueError:  # of something else, or damaged: not what is looked for
            continue
    raise ValueError(
        f'{key} = "{name}": no folder in {base} (run-dir) has the {SKELETON} of that training'
    )
