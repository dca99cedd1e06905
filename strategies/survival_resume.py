"""Survival runs that go on: what set-up agreed on, kept in a snapshot, and the same sites again.

The set-up of an interrupted run is not made anew: it may have had sites that were left out since,
whose rows are in the pooled moments. Sites introduce themselves and answer ``statistics`` again,
and both are compared with what they said before: rows that changed would make another model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, Message, RecordDict

from strategies.exchange import Exchange, Fault
from strategies.lateness import LEFT_OUT
from strategies.membership import Refused
from strategies.snapshot import Snapshot
from strategies.survival_statistics import PooledStatistics
from tasks.site.messages import Facts, TaskPart
from tasks.survival.encoding import FeatureEncoding
from tasks.survival.risk_sets import RiskSetSums
from tasks.survival.set_up_messages import SurvivalFacts
from tasks.survival.standardization import Standardizer

_COUNTS = ("at_risk_weight", "events", "at_risk_count")


@dataclass(frozen=True)
class Told:
    """What sites told in set-up, to compare with what they tell when a run goes on.

    Attributes
    ----------
    facts : mapping of str to mapping
        Of the introduction, by name of the site.
    digests : mapping of str to str
        SHA-256 of the answer to ``statistics``, by name.
    """

    facts: Mapping[str, Facts] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, exchange: Exchange, sites: Mapping[str, TaskPart], replies: Iterable[Message]
    ) -> Told:
        """Return what was told in the exchanges of set-up."""
        digests = {
            exchange.name_of(reply.metadata.src_node_id): digest_of(reply.content)
            for reply in replies
        }
        return cls({name: sites[name].facts for name in digests if name in sites}, digests)


@dataclass(frozen=True)
class SetUp:
    """What set-up agreed on, and who still takes part.

    Attributes
    ----------
    statistics : PooledStatistics
    told : Told
    members : tuple of str
        Sites that are still addressed, in the order of names.
    faults : tuple of Fault
        All of the run so far.
    """

    statistics: PooledStatistics
    told: Told
    members: tuple[str, ...]
    faults: tuple[Fault, ...]

    def to_snapshot(self, snapshot: Snapshot) -> Snapshot:
        """Return `snapshot` with this set-up in it."""
        pooled = self.statistics
        encoding = pooled.standardizer.encoding
        set_up = {
            "feature-names": list(pooled.feature_names),
            "feature-encoding": encoding.to_json() if encoding else None,
            "horizon": float(pooled.horizon),
            "data-set": pooled.data_set,
            "sites": [_plain(entry) for entry in pooled.sites],
            "introductions": {name: _plain(facts) for name, facts in self.told.facts.items()},
            "digests": dict(self.told.digests),
            "members": list(self.members),
            "faults": [[f.site, f.step, f.code, f.reason] for f in self.faults],
        }
        arrays = {
            "set-up/mean": pooled.standardizer.mean,
            "set-up/scale": pooled.standardizer.scale,
            **{f"set-up/{name}": getattr(pooled.counts, name) for name in _COUNTS},
        }
        return Snapshot(
            snapshot.kind,
            snapshot.round,
            {**snapshot.facts, "set-up": set_up},
            {**snapshot.arrays, **arrays},
        )

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot) -> SetUp:
        """Read what `to_snapshot` wrote."""
        facts: Mapping[str, Any] = snapshot.facts["set-up"]
        arrays, encoding = snapshot.part("set-up"), facts["feature-encoding"]
        statistics = PooledStatistics(
            feature_names=tuple(facts["feature-names"]),
            standardizer=Standardizer(
                arrays["mean"],
                arrays["scale"],
                None if encoding is None else FeatureEncoding.from_json(encoding),
            ),
            horizon=facts["horizon"],
            counts=RiskSetSums(**{name: arrays[name] for name in _COUNTS}),
            data_set=facts["data-set"],
            sites=[dict(entry) for entry in facts["sites"]],
        )
        return cls(
            statistics,
            Told(facts["introductions"], facts["digests"]),
            tuple(facts["members"]),
            tuple(Fault(*words) for words in facts["faults"]),
        )

    @property
    def facts(self) -> dict[str, SurvivalFacts]:
        """Facts of the sites that answered ``statistics``, by name."""
        return {name: SurvivalFacts.from_facts(told) for name, told in self.told.facts.items()}

    def meet_again(self, exchange: Exchange, sites: Mapping[str, TaskPart]) -> None:
        """See that those who took part are there and tell what they told; address nobody else.

        Parameters
        ----------
        exchange : Exchange
            Whose nodes were introduced; faults of the run so far are put before its own.
        sites : mapping of str to TaskPart
            What each told at its introduction.

        Raises
        ------
        Refused
            With the name of each site that is missing, or that tells something else.
        """
        nodes = {exchange.name_of(node): node for node in exchange.get_node_ids()}
        wrong = []
        for name in self.members:
            if name not in nodes:
                wrong.append(f"{name}: takes part in the run that is resumed, and is not there")
            elif _plain(sites.get(name, TaskPart()).facts) != _plain(self.told.facts[name]):
                wrong.append(f"{name}: tells other columns, or other facts of its rows, {_BEFORE}")
        if wrong:
            raise Refused(wrong)
        exchange.faults[:] = [
            *self.faults,
            *(fault for fault in exchange.faults if fault not in self.faults),
        ]
        known = {fault.site for fault in self.faults if fault.code == LEFT_OUT}
        for name in sorted(nodes.keys() - set(self.members)):
            if name not in known:
                reason = "left out: took no part in the run that is resumed"
                exchange.report_fault(nodes[name], LEFT_OUT, reason, step="hello")
            exchange.exclude([nodes[name]])

    def compare(self, exchange: Exchange, replies: Iterable[Message]) -> None:
        """See that the sites answer ``statistics`` as they did before.

        Raises
        ------
        Refused
            With the name of each that does not.
        """
        found = Told.of(exchange, {}, replies).digests
        wrong = [
            f"{name}: statistics of its rows are not what they were {_BEFORE}"
            if name in found
            else f"{name}: gave no usable answer to the set-up; resume when it can"
            for name in self.members
            if found.get(name) != self.told.digests[name]
        ]
        if wrong:
            raise Refused(wrong)


_BEFORE = "in the run that is resumed: begin a new run"


def digest_of(content: RecordDict) -> str:
    """Return the SHA-256 of a message's content, equal for equal names, types and bits."""
    digest = hashlib.sha256()
    for key, record in sorted(content.items()):
        digest.update(f"{key}\0{type(record).__name__}\0".encode())
        for name, value in record.items():
            if isinstance(value, Array):
                array = value.numpy()
                digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
            else:
                digest.update(f"{name}\0{value!r}\0".encode())
    return digest.hexdigest()


def _plain(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping as it comes back from JSON: lists for tuples, numbers for numpy's."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(entry), default=lambda one: one.item()))
    return plain
