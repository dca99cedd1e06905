"""Runs of federated-survival in another Python that has it: speed, and predictions of test rows.

It is one process that pools the clients' rows for label cuts, baseline hazard and metrics. It does
not standardize features, so the programs here do that with the training rows, to its advantage.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_START = """
import json, os, sys, time
from importlib.metadata import version
release = version("federated-survival")  # before what takes long, so that its absence is soon said
import numpy as np
import pandas as pd
import torch
from federated_survival import FederatedSurvival

torch.set_num_threads(1)
asked = json.loads(sys.argv[1])
"""

SPEED = (
    _START
    + """
def seconds():
    used = os.times()
    return time.perf_counter(), sum(used[:4])

def fit(frame, one, seed):
    FederatedSurvival(
        model="DeepSurv",
        n_clients=one["n_clients"],
        global_rounds=asked["rounds"],
        local_steps=asked["local_steps"],
        random_state=seed,
        use_differential_privacy=True,
        dp_mechanism="gaussian",
        dp_clip_norm=0.5,
        dp_noise_multiplier=0.05,
    ).fit(frame, duration_col="time", event_col="event")

samples = []
for place, one in enumerate(asked["sizes"]):
    frame = pd.read_csv(one["rows"])
    if not place:
        fit(frame.head(200), one, 0)  # what is imported on first use
    wall, cpu = seconds()
    fit(frame, one, 1)
    samples.append([now - then for now, then in zip(seconds(), (wall, cpu))])
print(json.dumps({"version": release, "samples": samples}))
"""
)

PREDICT = (
    _START
    + """
from federated_survival.data.workflow import DataSet

outcome = [asked["time"], asked["event"]]
for split in asked["splits"]:
    train, test = pd.read_parquet(split["train"]), pd.read_parquet(split["test"])
    names = [name for name in test if name not in outcome]
    mean, scale = train[names].mean(), train[names].std().replace(0, 1)
    inputs = lambda frame: ((frame[names] - mean) / scale).to_numpy(dtype=np.float32)
    labels = lambda frame: frame[outcome].to_numpy(dtype=np.float32)
    sites = train.groupby("site", sort=True)
    data = DataSet(
        clients_set={f"client{i}": (inputs(rows), labels(rows)) for i, rows in sites},
        train_data=inputs(train),
        train_label=labels(train),
        test_data=inputs(test),
        test_label=labels(test),
        raw_aug_clients_set={},
    )
    torch.manual_seed(split["seed"])
    model = FederatedSurvival(
        model=split["model"],
        n_clients=len(sites),
        global_rounds=asked["rounds"],
        local_steps=asked["local_steps"],
        random_state=split["seed"],
        **asked["settings"],
    ).fit(data)
    curves = model.predict_survival(inputs(test))
    np.savez(split["out"], times=curves.index.to_numpy(dtype=float), survival=curves.to_numpy().T)
    print(split["model"], split["seed"], "done", file=sys.stderr, flush=True)
print(json.dumps({"version": release}))
"""
)


def run_peer(python: Path, program: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Run one of the programs above in another Python, one thread, and return its answer.

    Raises
    ------
    RuntimeError
        If that Python does not have federated-survival, or it fails.
    """
    one = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        ended = subprocess.run(
            [str(python), "-c", program, json.dumps(asked)],
            capture_output=True,
            text=True,
            env={**environment, **one},
            check=False,
        )
    except OSError as error:
        raise RuntimeError(f"federated-survival did not run: {error}") from None
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"federated-survival did not run in {python.name}: {last}")
    answer: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return answer
