"""Run folders of the vertical task for tests of its report: trees and losses of a central fit."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from fedapp.run_folder import LedgerRow, RunFolder
from fedapp.site_data import load_frame
from tasks.vertical_xgboost.central import CentralModel, fit_central
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.joined import JoinedTable, join
from tasks.vertical_xgboost.rows import read_table

PARTIES = ("north", "south", "east", "west")
SECONDS = {"decrypt": 0.25, "encrypt": 0.5, "encrypt-own": 1.0, "fold": 2.0}
CONFIG = {
    "task": "vertical-xgboost",
    "vertical-xgboost.objective": "binary:logistic",
    "vertical-xgboost.encryption": "paillier",
    "vertical-xgboost.key-bits": 2048,
    "vertical-xgboost.aggregator": "server",
    "vertical-xgboost.shuffle": True,
    "vertical-xgboost.max-depth": 3,
    "vertical-xgboost.test-fraction": 0.2,
}


@cache
def fitted(objective: str, max_depth: int) -> tuple[JoinedTable, CentralModel]:
    """A central fit of the bundled data of an objective."""
    config = VerticalXGBoostConfig(objective=objective, max_depth=max_depth, num_trees=3)
    data = "diabetes" if objective == "reg:squarederror" else "breast-cancer-columns"
    tables = {}
    for at, name in enumerate(PARTIES):
        node = {"partition-id": at, "num-partitions": len(PARTIES)}
        frame = load_frame(node, data=data, seed=0)
        tables[name] = read_table(
            frame, id_column="id", label_column="label", config=config, seed=0
        )
    table = join(tables)
    return table, fit_central(table, config)


def trees_document(table: JoinedTable, model: CentralModel) -> dict[str, Any]:
    """Content of ``trees.json``; gains are made up, no test reads them as gains."""
    trees = []
    for tree in model.trees:
        nodes: list[dict[str, Any]] = [{"id": leaf, "leaf": True} for leaf in tree.weights]
        records: dict[str, int] = {}
        for node, split in tree.splits.items():
            owner = table.feature_names[split.feature].split(".")[0]
            records[owner] = records.get(owner, -1) + 1
            left, right = tree.children[node]
            nodes.append(
                {
                    "id": node,
                    "leaf": False,
                    "owner": owner,
                    "record": records[owner],
                    "left": left,
                    "right": right,
                    "gain": 128.0 / (1 + node),
                }
            )
        trees.append({"nodes": nodes})
    return {"trees": trees}


def make_run(
    base: Path,
    *,
    objective: str = "binary:logistic",
    max_depth: int = 3,
    config: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
    document: dict[str, Any] | None = None,
    status: str = "ok",
) -> RunFolder:
    """A run folder; `without` drops keys of summary and lines, or the document ("trees.json")."""
    table, model = fitted(objective, max_depth)
    quality = "rmse" if objective == "reg:squarederror" else "accuracy"
    folder = RunFolder.create(base, task="vertical-xgboost")
    settings = {**CONFIG, "vertical-xgboost.objective": objective, **(config or {})}
    folder.write_config(settings, seed=0, runtime="in-process")
    last: dict[str, Any] = {}
    for at, metrics in enumerate(model.metrics, start=1):
        assert metrics.evaluation is not None
        last = {
            "train-loss": metrics.train.loss,
            "test-loss": metrics.evaluation.loss,
            f"train-{quality}": metrics.train.quality,
            f"test-{quality}": metrics.evaluation.quality,
        }
        line = {"tree": at, **last, "exchanges": 6, "bytes": 400_000, "ciphertexts": 1200}
        line["crypto-seconds"] = SECONDS
        folder.append_metrics({key: value for key, value in line.items() if key not in without})
    folder.write_ledger(_ledger())
    if "trees.json" not in without:
        folder.write_json("trees.json", document or trees_document(table, model))
    whole = {
        **last,
        "n-sites": len(PARTIES),
        "sites": [{"site": name, "columns": 7} for name in PARTIES],
        "split-clients": dict(zip(PARTIES, (*PARTIES[1:], PARTIES[0]), strict=True)),
        "roster-fingerprint": "ABCD-EFGH",
        "ciphertexts": 3600,
        "bytes": sum(row["bytes"] for row in _ledger() if not row["sealed"]),
        "exchanges": 22,
        "trees": len(model.trees),
        "set-up": {
            "exchanges": 3,
            "bytes": 90_000,
            "ciphertexts": 0,
            "crypto-seconds": {"seal": 1.5},
        },
        "ending": {"exchanges": 1, "bytes": 7_000, "ciphertexts": 0, "crypto-seconds": {}},
        "central": {**last, "same-trees": True},
        **(summary or {}),
    }
    folder.finish(status, summary={k: v for k, v in whole.items() if k not in without})
    return folder


def _ledger() -> list[LedgerRow]:
    rows: list[LedgerRow] = []
    steps = ["keys", "labels", "buckets", *["histograms", "decide"] * 9, "finish"]
    words = {
        "histograms": "sums of gradients, encrypted: to the server nothing",
        "decide": "best gains and the candidates that reach them",
        "buckets": "bucket counts",
    }
    for exchange, step in enumerate(steps, start=1):
        for name in PARTIES:
            size = {"histograms": 45_000, "decide": 21_000, "buckets": 9_000}.get(step, 900)
            reveals = words.get(step, "who takes part")
            rows.append(_row(exchange, step, "server", name, size // 2, reveals))
            rows.append(_row(exchange, step, name, "server", size, reveals))
            if step == "buckets":
                for other in PARTIES:
                    if other != name:
                        rows.append(_row(exchange, step, name, other, 4000, "buckets", sealed=True))
    return rows


def _row(
    exchange: int,
    step: str,
    sender: str,
    receiver: str,
    size: int,
    reveals: str,
    *,
    sealed: bool = False,
) -> LedgerRow:
    return {
        "exchange": exchange,
        "step": step,
        "sender": sender,
        "receiver": receiver,
        "bytes": size,
        "sealed": sealed,
        "reveals": reveals,
    }
