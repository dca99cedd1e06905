"""The release of a ROC-GLM run, asked of all sites, and again of those that are left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from logging import WARNING

from flwr.app import Message
from flwr.supercore import log

from strategies.all_parties import refusal_of
from strategies.exchange import Exchange, Fault, TooFewSites
from strategies.roc_glm_checks import check_masked, check_release
from strategies.roc_glm_pooling import PooledRelease, pool_clear, pool_masked
from strategies.roc_glm_release import LEAST_MASKED, plan_release, read_facts
from strategies.without_rounds import WithoutRounds
from tasks.roc_glm.config import RocGlmConfig
from tasks.roc_glm.messages import (
    RELEASE,
    RELEASE_STEP,
    MaskedReply,
    ReleaseReply,
    ReleaseRequest,
)
from tasks.roc_glm.score_model import ScoreModel
from tasks.roc_glm.site_state import run_name
from tasks.secure.roster import ROSTER_FAULTS, Roster
from tasks.secure.secure_sums import unmask_sum
from tasks.site.messages import TaskPart
from tasks.site.name_lists import some_names


class RocGlmFirstStep(WithoutRounds):
    """Step 1 of :class:`~strategies.roc_glm.RocGlm`, parameters there."""

    def __init__(
        self,
        *,
        config: RocGlmConfig,
        sites: Mapping[str, TaskPart],
        model: ScoreModel | None,
    ) -> None:
        self.config = config
        self.bundles = {name: part.key_bundle for name, part in sites.items()}
        self.facts = read_facts(sites, config)
        self.plan = plan_release(config, self.facts, model)
        self.roster: Roster | None = None
        self._left_out: list[str] = []

    def gather_release(self, exchange: Exchange) -> PooledRelease:
        """Step 1, ``release``: pool what the sites release of their survivor functions."""
        while True:
            nodes = {exchange.name_of(node): node for node in exchange.get_node_ids()}
            read = self._ask_release(exchange, list(nodes))
            lost = [name for name in nodes if name not in read]
            if not lost:
                break
            self._go_on_without(exchange, lost, left=len(read))
            exchange.exclude(nodes[name] for name in lost)
            if self.roster is None:
                break
        if self.roster is None:
            clear = {name: reply for name, reply in read.items() if isinstance(reply, ReleaseReply)}
            return pool_clear(self.plan, clear, self.facts)
        masked = [reply.masked for reply in read.values() if isinstance(reply, MaskedReply)]
        sums = unmask_sum(masked, roster=self.roster, step=RELEASE_STEP)
        return pool_masked(self.plan, sums, self.facts, self.roster.names)

    def _ask_release(
        self, exchange: Exchange, names: list[str]
    ) -> dict[str, ReleaseReply | MaskedReply]:
        plan = self.plan
        if self.config.masks_sums:
            self.roster = Roster.from_bundles(
                [self.bundles[name] for name in names], run=run_name(exchange.run.run_id)
            )
        relayed = self.roster.to_bytes() if self.roster is not None else b""
        request = ReleaseRequest(plan.cuts, plan.is_probability, plan.sensitivity, relayed)

        def parse(message: Message) -> ReleaseReply | MaskedReply:
            """Read a reply, and refuse another than was asked for or one that cannot be."""
            name = exchange.name_of(message.metadata.src_node_id)
            if self.roster is not None:
                answer = MaskedReply.from_record(message.content)
                check_masked(answer.masked, name=name, roster=self.roster, step=RELEASE_STEP)
                return answer
            reply = ReleaseReply.from_record(message.content)
            check_release(plan, reply, self.facts[name])
            return reply

        content = request.to_record()
        messages = [
            Message(content, dst_node_id=node, message_type=RELEASE)
            for node in exchange.get_node_ids()
        ]
        before = len(exchange.faults)
        try:
            read = dict(exchange.read_messages(exchange.send_and_receive(messages), parse))
        except TooFewSites:
            _refuse_where_keys_are_refused(exchange.faults[before:])
            raise
        _refuse_where_keys_are_refused(exchange.faults[before:])
        return read

    def _go_on_without(self, exchange: Exchange, lost: list[str], *, left: int) -> None:
        """Note who is lost, or end the run."""
        if self.config.masks_sums and (why := self._why_not_again(left)):
            raise TooFewSites(
                f"release: no usable answer of {some_names(lost)}, so the masked sum cannot be "
                f"opened; {why}",
                list(exchange.faults),
            )
        self._left_out += lost
        log(WARNING, "%s: lost, the run goes on without", some_names(lost))

    def _why_not_again(self, left: int) -> str:
        """Why a masked sum is not asked for again of the sites that are left, or nothing."""
        if self.config.secure:
            return "noise that is shared between sites is not drawn anew: begin a new run"
        if self.config.drop_outs != "semi-honest-server":
            return "roc-glm.drop-outs = 'semi-honest-server' would repeat it without them"
        if left < LEAST_MASKED:
            return f"{left} sites are left, {LEAST_MASKED} needed"
        return ""


def _refuse_where_keys_are_refused(faults: Iterable[Fault]) -> None:
    """End the run where sites do not take the keys of others: whoever is left is shown the same.

    Raises
    ------
    Refused
        With whose keys, and who says it.
    """
    if verdicts := [fault for fault in faults if fault.code in ROSTER_FAULTS]:
        raise refusal_of(verdicts)
