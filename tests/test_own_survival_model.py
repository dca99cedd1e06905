"""A survival model of one's own, added to the package as the documents say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

MODULE = """
from torch import nn

from tasks.survival.models.proportional import ProportionalHazards
from tasks.survival.models.registry import register


@register("Halved")
def halved(design):
    return ProportionalHazards(nn.Linear(design.n_features, 1, bias=False))
"""

CHECK = """
import sys
from pathlib import Path

import tasks
from fedapp import run_config
from fedapp.run_config import ConfigError

assert Path(tasks.__file__).parent.parent == Path.cwd()
run_config.read({"task": "survival"})
assert "torch" not in sys.modules
config = run_config.read({"task": "survival", "survival.model": "Halved"})
from tasks.survival.models import build_configured
import numpy as np
built = build_configured(config.survival, n_features=3, horizon=1.0, cuts=np.array([0.0, 1.0]))
assert built.network.weight.shape == (1, 3)
try:
    run_config.read({"task": "survival", "survival.model": "Halve"})
except ConfigError as error:
    print(error)
"""


def test_a_module_that_the_package_imports_adds_a_name_to_the_configuration(tmp_path: Path) -> None:
    for package in ("fedapp", "strategies", "tasks"):
        shutil.copytree(ROOT / package, tmp_path / package)
    models = tmp_path / "tasks" / "survival" / "models"
    (models / "halved.py").write_text(MODULE)
    with (models / "__init__.py").open("a") as file:
        file.write("\nfrom tasks.survival.models import halved\n")
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "survival.model = 'Halve'" in done.stdout.replace('"', "'")
