"""The benchmark of Paillier counts what a run does, and reports both engines and naive `phe`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from tasks.vertical_xgboost.paillier.packing import SlotLayout


@pytest.fixture(scope="module")
def benchmark_module() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "paillier_operations.py"
    spec = importlib.util.spec_from_file_location("paillier_operations", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_operations_of_the_credit_run(benchmark_module: ModuleType) -> None:
    layout = SlotLayout(rows=24_000, row_bound=2**32, key_bits=2048)
    counts = benchmark_module.count_operations(layout, shuffled=True)
    # candidates and full sum a plaintext: 20, 10, 5 at the three levels
    totals = 5 * (3 * (6 + 12 + 23) + (6 + 11 + 22))
    assert counts == {
        "encrypt": 3 * totals,
        "encrypt own": 5 * 3 * (439 + 4),
        "fold": totals,
        "add": 3 * totals,
        "decrypt": totals,
    }
    plain = benchmark_module.count_operations(layout, shuffled=False)
    assert plain == counts | {"encrypt own": totals, "fold": 0}


def test_a_small_measurement(benchmark_module: ModuleType, tmp_path: Path) -> None:
    record = benchmark_module.run(bits=2048, repeat=4)
    assert set(record["operations, s"]) == {"gmpy2", "phe", "naive phe"}
    for parts in record["run, s"].values():
        assert parts["all"] == pytest.approx(sum(parts.values()) - parts["all"])
        assert min(parts.values()) >= 0
    (tmp_path / "record.json").write_text(json.dumps(record))
