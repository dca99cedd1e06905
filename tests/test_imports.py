"""What is imported when Flower loads the app: a process is started for every message."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "pycox", "sklearn", "matplotlib", "xgboost", "lifelines", "scipy.optimize"}

SLOWER_THAN_FLOWER = HEAVY | {"pandas", "pyarrow", "scipy.special", "gmpy2"}
"""What Flower itself does not import."""

LOADED = """
import sys
import fedapp.{app}
{also}
print(*(name for name in sys.modules if name in {heavy!r}))
"""


@pytest.mark.parametrize(
    ("app", "also"),
    [
        ("client_app", ""),
        ("client_app", "from tasks.roc_glm import client; from fedapp import site_data"),
        ("client_app", "from tasks.vertical_xgboost import client, level_client"),
        ("server_app", ""),
    ],
)
def test_nothing_heavy_is_imported_where_it_is_not_needed(app: str, also: str) -> None:
    code = LOADED.format(app=app, also=also, heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == []


def test_the_configuration_is_read_without_tables_and_special_functions() -> None:
    """By what every message of every task needs, the mod that holds a site's limits included."""
    code = LOADED.format(
        app="client_app", also="import fedapp.run_config", heavy=SLOWER_THAN_FLOWER
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == []
