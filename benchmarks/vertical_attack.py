"""How well parties guess labels of others: the PIVODL paper's Table III, with figures beside it.

    python benchmarks/vertical_attack.py --data-dir PATH --json numbers.json
    python benchmarks/vertical_attack.py --data-dir PATH --quick

Trains on credit and bank data (see `vertical_document.py`), with and without partial differential
privacy, over 5 seeds. After each training every party attacks the labels of all others with what it
has (`tasks.vertical_xgboost.attack`). Figures are means over parties and seeds. A guess accuracy
says little where 78 or 88 % of the labels are 0, and one below one half is its complement turned
round: look at AUC, balanced accuracy and the gain over always guessing the majority.

Exits with 1 unless noise brings the AUC of the paper's attack nearer to one half than it was (with
``--quick`` there are too few rows to tell).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from vertical_document import (  # noqa: E402
    DATA_SETS,
    ID,
    DataSet,
    Setting,
    party_frames,
    privacy,
    train,
)

from fedapp import run_config  # noqa: E402
from fedapp.simulation import SimulationResult  # noqa: E402
from fedapp.vertical_audit import audit, document_of  # noqa: E402
from tasks.vertical_xgboost.model_part import ModelPart, part_path  # noqa: E402
from tasks.vertical_xgboost.rows import read_table  # noqa: E402

FIGURES = ("share", "accuracy", "balanced-accuracy", "auc", "gain")


def attack_run(
    result: SimulationResult, frames: Sequence[pd.DataFrame], data: DataSet, *, seed: int
) -> dict[str, Any]:
    """Let every party of a run attack."""
    settings = json.loads((result.run_folder / "config.json").read_text())["config"]
    config = run_config.read(settings).vertical_xgboost
    names = [f"site-{at}" for at in range(len(frames))]
    tables = {
        name: read_table(frame, id_column=ID, label_column=data.label, config=config, seed=seed)
        for name, frame in zip(names, frames, strict=True)
    }
    folder = result.run_folder / "parties"
    parts = {name: ModelPart.load(part_path(folder, name)) for name in names}
    return document_of(audit(parts, tables, config), config)


def measure(options: argparse.Namespace, run_dir: str) -> list[dict[str, Any]]:
    """Train and attack for every data set, seed and privacy."""
    found = []
    for name in options.data:
        data = DATA_SETS[name]
        frame = data.read(options.data_dir, rows=1500 if options.quick else None)
        for seed in range(options.seeds):
            frames = party_frames(frame, data, seed=seed)
            for epsilon in (0.0, *options.epsilons):
                noise = privacy(data, epsilon, sensitivity=options.sensitivity)
                if noise and options.clip:
                    noise["dp-clip"] = options.clip
                setting = Setting(options.depth, options.trees, noise)
                result = train(frames, data, setting, seed=seed, run_dir=run_dir)
                document = attack_run(result, frames, data, seed=seed)
                found.append({"data": name, "seed": seed, "epsilon": epsilon, **document})
                print(f"{name}, seed {seed}, epsilon {epsilon:g}", file=sys.stderr, flush=True)
    return found


def table(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean over seeds of each data set, attack and epsilon."""
    rows = []
    for key in dict.fromkeys((each["data"], each["epsilon"]) for each in found):
        chosen = [each for each in found if (each["data"], each["epsilon"]) == key]
        # Whether a party can make an attack depends on the trees, so on the run.
        for attack in dict.fromkeys(name for each in chosen for name in each["attacks"]):
            means = [
                each["attacks"][attack]["mean"] for each in chosen if attack in each["attacks"]
            ]
            figures = {name: float(np.mean([mean[name] for mean in means])) for name in FIGURES}
            spread = float(np.std([mean["auc"] for mean in means]))
            row = {"data": key[0], "epsilon": key[1], "attack": attack, "runs": len(means)}
            rows.append({**row, **figures, "auc-sd": spread})
    return rows


def faults(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What does not hold."""
    auc = {(r["data"], r["epsilon"]): r["auc"] for r in rows if r["attack"] == "leaf-weights"}
    return [
        f"{data}, epsilon {epsilon:g}: AUC {value:.3f}, and {auc[data, 0.0]:.3f} without noise"
        for (data, epsilon), value in auc.items()
        if epsilon and abs(value - 0.5) >= abs(auc.get((data, 0.0), 0.5) - 0.5)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it all; 0 if what must hold does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the zip files")
    parser.add_argument("--data", nargs="*", choices=["credit", "bank"], default=["credit", "bank"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilons", type=float, nargs="*", default=[4.0, 10.0])
    parser.add_argument("--sensitivity", choices=["exact", "paper"], default="exact")
    parser.add_argument("--clip", type=float, help="C; default as in vertical_partial_dp.py")
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--trees", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="1,500 rows, 1 seed, one epsilon")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.epsilons = 1, [4.0]
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as run_dir:
        found = measure(options, run_dir)
    rows = table(found)
    print(f"{'data':7} {'eps':>4} {'attack':18} {'share':>6} {'accuracy':>8} {'balanced':>8} AUC")
    for row in rows:
        words = "{data:7} {epsilon:4g} {attack:18} {share:6.2f} {accuracy:8.4f} "
        words += "{balanced-accuracy:8.4f} {auc:.3f} (sd {auc-sd:.3f}), {gain:+.4f} over majority"
        print(words.format(**row))
    wrong = [] if options.quick else faults(rows)
    for fault in wrong:
        print(f"does NOT hold: {fault}")
    if options.json:
        content = {"table": rows, "runs": found, "faults": wrong}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
