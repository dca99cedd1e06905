"""A Grid that answers by a script, and a clock that nobody waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from strategies import exchange as exchange_module
from strategies import ledger as ledger_module


class Clock:
    """Time that passes by being slept; stands in for the module ``time``."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.naps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.naps.append(seconds)
        self.now += seconds
        # A loop that does not wait would never end under a clock that only sleep moves.
        assert len(self.naps) < 10_000, "polls without end"

    @property
    def slept(self) -> float:
        return sum(self.naps)

    @classmethod
    def installed(cls, monkeypatch: pytest.MonkeyPatch) -> Clock:
        """Return a clock that exchange and ledger take for the module ``time``."""
        clock = cls()
        for module in (exchange_module, ledger_module):
            monkeypatch.setattr(module, "time", clock)
        return clock


@dataclass(frozen=True)
class Answer:
    """What a node does with a message.

    `what` is the content or error of its reply, or a function of the message; None: it never
    answers. The reply is there `after` seconds, `copies` times, and says that it comes from
    node `sender` and run `run_id` (None: from the node itself, of the request's run).
    """

    what: RecordDict | Error | Callable[[Message], RecordDict | Error] | None
    after: float = 0.0
    copies: int = 1
    sender: int | None = None
    run_id: int | None = None


@dataclass
class ScriptedGrid(Grid):
    """A Grid whose nodes answer by a script.

    Attributes
    ----------
    answers : mapping
        By node id: what the node answers to every message.
    clock : Clock or None
        Of replies that come later.
    refused : mapping of int to str or None
        Nodes whose messages the runtime does not take, and what it gives in place of an id.
    drop_refused : bool
        Leave refused messages out of the list of ids (as Flower's InMemoryGrid does).
    """

    answers: Mapping[int, Answer | RecordDict | Error | None]
    clock: Clock | None = None
    refused: Mapping[int, str | None] = field(default_factory=dict)
    drop_refused: bool = False
    task_type: str = TaskType.SERVER_APP

    def __post_init__(self) -> None:
        self._run = Run.create_empty(7)
        self._run.primary_task_type = self.task_type
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 7, 0, 0
        self.connected = list(self.answers)
        self.sent: list[Message] = []
        self.pulls = 0
        self.pulled_at: list[float] = []
        self._mail: dict[str, tuple[float, list[Message]]] = {}

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.connected)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids: list[str] = []
        for message in messages:
            node = message.metadata.dst_node_id
            key = f"message-{len(self.sent) + 1}"
            message.metadata.__dict__["_message_id"] = key
            self.sent.append(message)
            if node in self.refused:
                if not self.drop_refused:
                    ids.append(self.refused[node])  # type: ignore[arg-type]  # as HttpGrid does
                continue
            ids.append(key)
            self._put(key, message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.pulls += 1
        self.pulled_at.append(self._now())
        found: list[Message] = []
        for key in list(message_ids):
            due, replies = self._mail.get(key, (0.0, []))
            if replies and self._now() >= due:
                found += replies
                del self._mail[key]
        return found

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise AssertionError("the Exchange polls by itself")

    def _put(self, key: str, message: Message) -> None:
        answer = self.answers[message.metadata.dst_node_id]
        if not isinstance(answer, Answer):
            answer = Answer(answer)
        if answer.what is None:
            return
        what = answer.what(message) if callable(answer.what) else answer.what
        replies = [Message(what, reply_to=message) for _ in range(answer.copies)]
        for reply in replies:
            if answer.sender is not None:
                reply.metadata.__dict__["_src_node_id"] = answer.sender
            if answer.run_id is not None:
                reply.metadata.__dict__["_run_id"] = answer.run_id
        self._mail[key] = (self._now() + answer.after, replies)

    def _now(self) -> float:
        return self.clock.now if self.clock is not None else 0.0
