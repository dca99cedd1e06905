"""The examples run as they are and show what they say; each extension is small."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def printed(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+\.\d*", text)]


def test_other_weights(capsys: pytest.CaptureFixture[str]) -> None:
    plain, rooted = numbers(printed("other_weights.py", capsys))
    assert plain == pytest.approx((100 * 1 + 10_000 * 2) / 10_100, abs=0.01)
    assert rooted == pytest.approx((10 * 1 + 100 * 2) / 110, abs=0.01)


def test_callback_each_round(capsys: pytest.CaptureFixture[str]) -> None:
    *rounds, last = printed("callback_each_round.py", capsys).splitlines()
    losses = [numbers(line)[0] for line in rounds]
    assert len(losses) == 10
    assert losses[-1] < losses[0] / 10
    assert numbers(last)[0] == min(losses)


def test_other_clipping(capsys: pytest.CaptureFixture[str]) -> None:
    one_norm, one_each = printed("other_clipping.py", capsys).splitlines()
    assert numbers(one_norm) == pytest.approx([1.0, 0.001], abs=0.02)
    assert numbers(one_each) == pytest.approx([2**-0.5, 0.1 * 2**0.5], abs=0.02)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("other_weights.py", "SquareRootWeights"),
        ("callback_each_round.py", "BestModel"),
        ("other_clipping.py", "clip_each_array"),
    ],
)
def test_an_extension_takes_about_ten_lines(file: str, name: str) -> None:
    tree = ast.parse((EXAMPLES / file).read_text())
    (node,) = [n for n in tree.body if getattr(n, "name", None) == name]
    documentation = [n for n in ast.walk(node) if isinstance(n, ast.Expr) and _is_text(n.value)]
    hidden = sum(n.end_lineno - n.lineno + 1 for n in documentation if n.end_lineno)
    assert node.end_lineno is not None
    assert node.end_lineno - node.lineno + 1 - hidden <= 14


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
