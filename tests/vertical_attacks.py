"""Runs of the vertical task in which the server or a party does not keep to the protocol."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from flwr.app import Context, Message, RecordDict

from fedapp import simulation
from fedapp.simulation import InProcessGrid
from tasks.vertical_xgboost.end_messages import STOP, StopRequest
from tests.vertical_frames import cut, random_frame
from tests.vertical_runs import draw_known_keys, run

SMALL: dict[str, Any] = {"max_depth": 2, "num_trees": 1, "max_bin": 4}

Send = Callable[[RecordDict, str | None], Message]
"""Sends a party a message of the attacker's own: content, and type (None: that of the other)."""


@dataclass(frozen=True)
class Attacked:
    """How a run ended.

    Attributes
    ----------
    summary : dict
    heard : list of str
        Reason that each party was told.
    contexts : dict of int to Context
        Of each node.
    """

    summary: dict[str, Any]
    heard: list[str]
    contexts: dict[int, Context]

    @property
    def reason(self) -> str:
        """Why it did not end well."""
        return str(self.summary.get("reason"))


def frames_of(parties: int = 3, rows: int = 120, **how: Any) -> list[pd.DataFrame]:
    """Columns and labels over parties."""
    return cut(random_frame(5, rows=rows, **how), parties=parties, labels="even")


def attack(
    directory: Path,
    *,
    frames: Sequence[pd.DataFrame] | None = None,
    before: Callable[[str, str, RecordDict, Send], None] | None = None,
    after: Callable[[str, str, RecordDict], None] | None = None,
    nodes: Mapping[str, Mapping[str, Any]] | None = None,
    **keys: Any,
) -> Attacked:
    """Make a run in which messages are changed on their way.

    Parameters
    ----------
    directory : Path
    frames : sequence of DataFrame, optional
    before : callable, optional
        Takes party, type and content of each request, and a way to send messages in front of it.
    after : callable, optional
        Takes party, type and content of each reply that is no error.
    nodes : mapping of str to mapping, optional
        Node configuration of parties beside name and rows.
    **keys
        Settings of the task.
    """
    heard: list[str] = []
    grids: list[InProcessGrid] = []

    class AlteringGrid(InProcessGrid):
        def __init__(self, client_app: Any, configs: Any, *arguments: Any) -> None:
            more = nodes or {}
            configs = [{**config, **more.get(config["site-name"], {})} for config in configs]
            super().__init__(client_app, configs, *arguments)
            grids.append(self)

        def _handle(self, message: Message) -> Message:
            kind = message.metadata.message_type
            node = message.metadata.dst_node_id
            if kind == STOP:
                heard.append(StopRequest.from_record(copy.deepcopy(message).content).reason)
            if before is not None:

                def send(content: RecordDict, other: str | None = None) -> Message:
                    own = copy.deepcopy(message)
                    own.content = copy.deepcopy(content)
                    own.metadata.__dict__["_message_type"] = other or kind
                    return super(AlteringGrid, self)._handle(own)

                before(f"site-{node - 1}", kind, message.content, send)
            reply = super()._handle(message)
            if after is not None and not reply.has_error():
                after(f"site-{node - 1}", kind, reply.content)
            return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "InProcessGrid", AlteringGrid)
        draw_known_keys(patch)
        result = run(directory, frames or frames_of(), **{**SMALL, **keys})
    return Attacked(dict(result.summary), heard, grids[0].contexts)
