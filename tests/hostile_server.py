"""A server that does not keep to the vertical protocol; `checkout_of` puts it into a copy.

Imported at the end of the copy's ``fedapp.server_app``. Sites run the same copy, as Flower has it,
so the fingerprints of the code are equal; what the sites do is as it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Message

from fedapp import server_app
from strategies.exchange import Exchange
from tasks.secure.keys import SiteKeys
from tasks.secure.roster import Roster
from tasks.vertical_xgboost.messages import BUCKETS, LABELS

ALTERED, REPLAYED, SWAPPED = 1, 2, 3
"""Seeds of a run, which choose what the server does."""

_honest_task, _honest_exchange = server_app.run_task, Exchange._exchange
_chosen: list[object] = []


def checkout_of(app: Path) -> Path:
    """Make a copy of the app hostile."""
    shutil.copy(__file__, app / "fedapp" / "hostile.py")
    with (app / "fedapp" / "server_app.py").open("a", encoding="utf-8") as file:
        file.write("\nfrom fedapp import hostile\n\nhostile.begin()\n")
    return app


def begin() -> None:
    """From now on runs of this process are hostile."""
    server_app.run_task = _run_task
    Exchange._exchange = _exchange  # type: ignore[method-assign]


def _run_task(grid: Any, values: Mapping[str, Any], **how: Any) -> Path:
    _chosen.append(values["seed"])
    return _honest_task(grid, values, **how)


def _exchange(self: Exchange, requests: list[Message], timeout: float | None) -> list[Message]:
    kind = requests[0].metadata.message_type
    if kind == BUCKETS and ALTERED in _chosen:
        for request in requests:
            _alter(request)
    elif kind == BUCKETS and REPLAYED in _chosen:
        _honest_exchange(self, requests, timeout)
        requests = [
            Message(each.content, dst_node_id=each.metadata.dst_node_id, message_type=kind)
            for each in requests
        ]
    elif kind == LABELS and SWAPPED in _chosen:
        for request in requests:
            if self.name_of(request.metadata.dst_node_id) != "west":
                _swap(request)
    return _honest_exchange(self, requests, timeout)


def _alter(request: Message) -> None:
    """Another last byte in what north sealed."""
    sealed = request.content.config_records["sealed"]
    if isinstance(part := sealed.get("north"), bytes):
        sealed["north"] = part[:-1] + bytes([part[-1] ^ 1])


def _swap(request: Message) -> None:
    """Keys of the server's own for those of west."""
    settings = request.content.config_records["labels"]
    relayed = settings["roster"]
    assert isinstance(relayed, bytes)
    run = f"run-{request.metadata.run_id}"
    own = SiteKeys.generate(site="west", run=run).public
    bundles = Roster.from_bytes(relayed, run=run).bundles
    changed = [own if bundle.site == "west" else bundle for bundle in bundles]
    settings["roster"] = Roster.from_bundles(changed, run=run).to_bytes()
