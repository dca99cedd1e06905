"""Figures, key numbers and words of the report on a run of vertical XGBoost.

Made from ``metrics.jsonl``, its summary, and ``trees.json`` of the run folder. A line of
``metrics.jsonl`` is written for each tree that was grown, with the costs from the first message of
its first level to the last one of its last::

    {"tree": 1,                                    # from 1
     "train-loss": 0.41, "test-loss": 0.43,        # mean loss after this tree
     "train-accuracy": 0.97, "test-accuracy": 0.95,  # of classes
     "train-rmse": 51.2, "test-rmse": 57.9,        # of a regression
     "exchanges": 6, "bytes": 812345, "ciphertexts": 1240,
     "crypto-seconds": {"encrypt": 0.5, "encrypt-own": 0.9, "fold": 1.4, "decrypt": 0.5}}

``crypto-seconds`` are CPU seconds of all parties and the server, by operation; any name may be in
it. The summary has, all optional:

- ``train-loss``, ``test-loss``, and of ``train-accuracy``, ``test-accuracy``, ``train-rmse``,
  ``test-rmse`` those of the objective; ``ciphertexts``, ``bytes``, ``exchanges`` of the whole run;
- ``crypto-seconds``: of the whole run, set-up included; the sum over trees if it is not there;
- ``split-clients``: party to the party that decrypted the sums of its columns;
- ``alignment``, ``rows-before``: how rows were aligned, and rows of each party before;
- ``trees`` (grown) and ``trees-kept`` (fewer, after early stopping);
- ``central`` (simulation only): the same quantities of a central fit on the joined table, and
  ``same-trees`` (bool: all splits and leaves equal). Quantities of XGBoost itself on the same
  buckets carry the prefix ``xgboost-``;
- ``dp-epsilon`` and other keys of :func:`fedapp.vertical_privacy.privacy_summary`;
  ``exact-leaves-test-accuracy`` or ``-rmse`` (simulation only): of the finished model;
- ``roster-fingerprint``: one code for the keys of all parties;
- ``set-up``, ``ending``: ``exchanges``, ``bytes``, ``ciphertexts`` and ``crypto-seconds`` of what
  comes before the first tree and after the last one.

``trees.json`` is what the server knows of the trees: their shape, and for a split its owner and
the owner's number of the split, never a feature or a threshold::

    {"trees": [{"nodes": [
        {"id": 0, "leaf": false, "owner": "north", "record": 3, "left": 1, "right": 2,
         "gain": 210.5},
        {"id": 1, "leaf": true}, {"id": 2, "leaf": true}]}]}

Node 0 is the root; with ``"roots": 3`` at the top nodes 0 to 2 are, of the trees of three classes
that grew together. Of the configuration the page reads ``vertical-xgboost.objective``,
``.encryption``, ``.key-bits``, ``.aggregator``, ``.shuffle`` and ``.test-fraction``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapp.report import figures, vertical_xgboost_figures
from fedapp.report.page import Absent, Figure, KeyNumber, Notice, Section
from fedapp.report.vertical_xgboost_tables import (
    central_table,
    owners_table,
    seconds_by_operation,
    trees_table,
)
from fedapp.report.vertical_xgboost_trees import DrawnTree, first_tree
from fedapp.report.vertical_xgboost_words import (
    alignment_words,
    central_words,
    encryption_words,
    fingerprint_words,
    privacy_words,
    quality_words,
    training_words,
    tree_lines,
    trees_words,
    trust_words,
)
from fedapp.run_record import RunRecord
from tasks.vertical_xgboost.classes import class_names

TITLE = "Vertical XGBoost over parties"
CURVES = "trees.json"


def key_numbers(run: RunRecord) -> list[KeyNumber]:
    """Return accuracy or RMSE, how many trees there are, and how the sums were encrypted."""
    return [
        KeyNumber(*quality_words(run)),
        KeyNumber("Trees", *trees_words(run)),
        KeyNumber("Encryption", *encryption_words(run)),
    ]


def notices(run: RunRecord) -> list[Notice]:
    """Return what a reader must not miss: no protection, weak protection, lost losslessness."""
    found = []
    if run.setting("vertical-xgboost.encryption") == "none":
        found.append(
            Notice(
                "failure",
                "No encryption: whoever adds the sums of gradients read them in clear. A baseline "
                "for experiments; nothing protects the labels.",
            )
        )
    elif (bits := run.setting("vertical-xgboost.key-bits", 2048)) < 2048:
        found.append(Notice("warning", f"Keys of {bits} bits are too short to protect anybody."))
    if run.summary.get("n-sites") == 2:
        found.append(
            Notice(
                "warning",
                "Two parties: each finds the other's sums by subtracting its own from the total.",
            )
        )
    if "dp-epsilon-paper" in run.summary:
        found.append(
            Notice(
                "warning",
                "sensitivity = paper: the noise of leaf weights is too small for the epsilon that "
                f"was asked for ({run.summary['dp-epsilon-paper']:g}); it gives "
                f"{run.summary['dp-epsilon']:.3g}.",
            )
        )
    if run.summary.get("dp-noise") == "seeded":
        found.append(Notice("warning", "Noise of leaf weights from a known seed protects nobody."))
    central = run.summary.get("central")
    if isinstance(central, Mapping) and central.get("same-trees") is False:
        found.append(
            Notice("warning", "The trees differ from those of the central fit on the joined table.")
        )
    return found


def site_columns(run: RunRecord) -> dict[str, dict[str, str]]:
    """Return who decrypted the sums of whose columns, and rows: head to party to cell."""
    heads = {"split-clients": "sums decrypted by", "rows-before": "rows before alignment"}
    found = {head: run.summary.get(key) for key, head in heads.items()}
    return {
        head: {str(key): str(value) for key, value in cells.items()}
        for head, cells in found.items()
        if isinstance(cells, Mapping)
    }


def sections(run: RunRecord, *, curves: Mapping[str, Any] | None, folder: Path) -> list[Section]:
    """Draw the figures of the task into `folder` and return the sections that hold them.

    Parameters
    ----------
    run : RunRecord
        The run.
    curves : mapping or None
        Content of ``trees.json``.
    folder : Path
        Folder of the figures.
    """
    return [
        Section(
            "Training",
            paragraphs=[*alignment_words(run), *training_words(run)],
            figures=[_loss(run, folder), _seconds(run, folder)],
            tables=trees_table(tree_lines(run), run.summary),
        ),
        _trees_section(run, curves, folder),
        _central_section(run),
        Section("Differential privacy", paragraphs=privacy_words(run)),
        Section("Whom one trusts", paragraphs=[*trust_words(run), *fingerprint_words(run)]),
    ]


def _loss(run: RunRecord, folder: Path) -> Figure | Absent:
    name = "loss-by-tree"
    lines = [line for line in tree_lines(run) if "train-loss" in line or "test-loss" in line]
    if not lines:
        return _absent(folder, name, "figure of the loss", "no tree has one recorded")
    kept = run.summary.get("trees-kept")
    svg = figures.draw(
        folder, name, lambda axes: vertical_xgboost_figures.draw_loss(axes, lines, kept=kept)
    )
    caption = "Mean loss by tree, on the rows of training and on those kept for evaluation."
    if not any("test-loss" in line for line in lines):
        caption = "Mean loss by tree on the rows of training; no rows were kept for evaluation."
    if kept is not None and kept < lines[-1]["tree"]:
        caption += " Upright line: the last tree that was kept."
    last = ", ".join(
        f"{key.replace('-', ' ')} {lines[-1][key]:.4g}"
        for key in ("train-loss", "test-loss")
        if key in lines[-1]
    )
    return Figure(name, svg, f"Loss by tree, {len(lines)} trees; after the last, {last}.", caption)


def _seconds(run: RunRecord, folder: Path) -> Figure | Absent:
    name = "crypto-seconds"
    seconds = seconds_by_operation(run.summary, tree_lines(run))
    if not seconds:
        off = run.setting("vertical-xgboost.encryption") == "none"
        why = "nothing was encrypted" if off else "no tree has them recorded"
        return _absent(folder, name, "figure of the time in cryptography", why)
    svg = figures.draw(
        folder,
        name,
        lambda axes: vertical_xgboost_figures.draw_seconds(axes, seconds),
        height=1.0 + 0.36 * len(seconds),
    )
    total = sum(seconds.values())
    words = ", ".join(f"{operation} {value:.3g} s" for operation, value in seconds.items())
    return Figure(
        name,
        svg,
        f"CPU seconds by operation: {words}.",
        f"CPU time of all parties and the server in each operation; {total:.3g} s in all. Volume "
        "by step is with the disclosure ledger, below.",
    )


def _trees_section(run: RunRecord, curves: Mapping[str, Any] | None, folder: Path) -> Section:
    name, title = "first-tree", "The trees, as the server knows them"
    tree, fault = first_tree(curves)
    if tree is None:
        why = f"the run folder has no {CURVES}" if curves is None else f"in {CURVES}, {fault}"
        return Section(title, figures=[_absent(folder, name, "drawing of a tree", why)])
    words = (
        "The server knows the shape of every tree, and of a split the party that owns it, that "
        "party's own number of it, and which anonymous feature and bucket it is on. Feature and "
        "threshold stay with the owner; the weights of leaves stay with the parties."
    )
    return Section(
        title,
        paragraphs=[words],
        figures=[_first_tree(tree, name, folder, of=_first_class(run))],
        tables=owners_table(curves or {}),
    )


def _first_class(run: RunRecord) -> str:
    classes = class_names(str(run.setting("vertical-xgboost.classes", "")))
    return f" (of class {classes[0]})" if classes else ""


def _first_tree(tree: DrawnTree, name: str, folder: Path, *, of: str) -> Figure:
    svg = figures.draw(
        folder,
        name,
        lambda axes: vertical_xgboost_figures.draw_tree(axes, tree),
        height=vertical_xgboost_figures.tree_height(tree),
    )
    caption = f"The first tree{of}, root at the left, left branches on top: owner and record of "
    caption += "each split, and its gain. Squares are leaves."
    if tree.hidden:
        caption += f" Deeper nodes are left out: {tree.hidden}."
    alt = f"First tree: {tree.splits} splits, {tree.leaves} leaves."
    return Figure(name, svg, alt, caption)


def _central_section(run: RunRecord) -> Section:
    title, central = "Federated against central", run.summary.get("central")
    if not isinstance(central, Mapping) or not central:
        why = "only a simulation has all columns and labels in one place"
        if run.setting("vertical-xgboost.encryption") is not None and not run.summary:
            why = "the run has no result"
        return Section(title, figures=[Absent(f"No comparison: {why}.")])
    return Section(
        title, paragraphs=central_words(central), tables=central_table(run.summary, central)
    )


def _absent(folder: Path, name: str, title: str, why: str) -> Absent:
    figures.discard(folder, name)
    return Absent(f"No {title}: {why}.")
