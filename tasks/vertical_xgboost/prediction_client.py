"""A party's half of a prediction: sides or rows for others, sealed; predictions of its own rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from pathlib import Path

import numpy as np
from flwr.app import Context, Message
from flwr.supercore import log
from numpy.typing import NDArray

from tasks.secure import split_reals
from tasks.secure.secure_sums import MaskedVector, unmask_sum
from tasks.secure.transcript import decode, encode
from tasks.site.faults import SiteFault
from tasks.site.messages import TaskPart
from tasks.site.requests import read_request
from tasks.vertical_xgboost import site_state
from tasks.vertical_xgboost.buckets import BoolArray
from tasks.vertical_xgboost.fixed_point import FloatArray
from tasks.vertical_xgboost.message_parts import Sealed
from tasks.vertical_xgboost.model_part import ModelPart, write_private
from tasks.vertical_xgboost.part_files import check_model_dir, run_dir
from tasks.vertical_xgboost.peers import Peers, accept_roster, known_peers, store_peers
from tasks.vertical_xgboost.prediction_files import predictions_path, predictions_text
from tasks.vertical_xgboost.prediction_messages import (
    OWNED,
    ROWS,
    SIDES,
    SUMS,
    PartFacts,
    PredictionsReply,
    PredictionsRequest,
    PredictReply,
    PredictRequest,
    prediction_step,
    sums_step,
)
from tasks.vertical_xgboost.routing import (
    Wave,
    expected,
    features_of,
    margins_by_sides,
    num_levels,
    num_records,
    num_steps,
    own_sides,
    pack,
    response,
    single_leaves,
    unpack,
)
from tasks.vertical_xgboost.rows import PartyTable
from tasks.vertical_xgboost.site import VerticalSite
from tasks.vertical_xgboost.site_state import Secrets

_SIDES = "fedapp/sides-of-rows/1"
_WORD = np.dtype("<u8")


def introduction(site: VerticalSite, context: Context) -> TaskPart:
    """What a party of a trained model adds to its introduction: keys, and which model it has."""
    part = site.known_part
    if not site.simulated:
        check_model_dir(site.model_dir)  # predictions are written there
    if part.has_noise and site.config.prediction == "direct":
        raise SiteFault(
            "noisy-leaves",
            "prediction = 'direct': whoever asks has noisy weights of leaves below its own splits "
            "(dp-epsilon of the training); allowed is 'routed'",
        )
    features_of(part, site.table)
    tell_unknown(site.table.unknown)
    response(np.zeros((part.num_roots, 0)), part.objective)
    plain = site.config.model_copy(update={"encryption": "none"})  # nothing to add up
    secrets = Secrets.draw(context, site.name, plain)
    table = site.table
    facts = PartFacts.of(part, num_rows=len(table.ids), digest=table.digest())
    if not site_state.has_begun(context):
        site_state.expect_next(context, "predict-0")
    return TaskPart(secrets.keys.public.to_bytes(), facts.to_facts())


def tell_unknown(unknown: Mapping[str, int]) -> None:
    """Say in the party's own log how many rows of a column have a category that no model knows."""
    for column, rows in unknown.items():
        if rows:
            log(
                WARNING,
                'column "%s": %d rows have another category than the '
                "training had, which counts as missing",
                column,
                rows,
            )


def predict(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``predict``: a step of the prediction."""
    request = read_request(lambda: PredictRequest.from_record(message.content))
    site_state.expect(context, f"predict-{request.step}")
    secrets = Secrets.known(context)
    peers = known_peers(secrets) if request.step else accept_roster(secrets, request.roster)
    at = _Step(site, site.known_part, secrets, peers, request.step)
    if request.step == 0:
        at.check()
    arrays = {} if request.step == 0 else site_state.known_arrays(context)
    sealed: dict[str, Sealed] = {}
    if not site.config.asker:
        sealed |= at.owners(request.sealed.get(OWNED, {}), arrays)
    if site.config.prediction == "routed":
        sealed |= at.route(request.sealed.get(ROWS, {}), arrays)
    elif request.sealed.get(ROWS):
        raise SiteFault("bad-request", "rows are handed on where nothing is routed")
    if at.is_last:
        sealed |= at.answers(arrays)
    reply = PredictReply(sealed, secrets.watch.seconds)
    if at.is_last and site.name not in at.askers:
        site_state.end(context)
        return Message(reply.to_record(), reply_to=message)
    store_peers(context, peers)
    site_state.store_arrays(context, arrays)
    secrets.store()
    following = "predictions" if at.is_last else f"predict-{request.step + 1}"
    site_state.expect_next(context, following)
    return Message(reply.to_record(), reply_to=message)


def predictions(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``predictions``: put together and write down those of own rows."""
    site_state.expect(context, "predictions")
    request = read_request(lambda: PredictionsRequest.from_record(message.content))
    secrets, part = Secrets.known(context), site.known_part
    peers = known_peers(secrets)
    last = num_steps(
        num_levels(part),
        routed=site.config.prediction == "routed",
        has_asker=bool(site.config.asker),
    )
    at = _Step(site, part, secrets, peers, last - 1)
    if site.config.prediction == "routed":
        margins = at.margins_of_sums(request.sealed.get(SUMS, {}), site_state.known_arrays(context))
    else:
        margins = at.margins_of_sides(request.sealed.get(SIDES, {}))
    path = predictions_path(
        Path(request.folder) if site.simulated else run_dir(site.model_dir, secrets.run), site.name
    )
    ids = [site.table.ids[row] for row in np.flatnonzero(at.own_rows)]
    write_private(path, predictions_text(ids, margins, part.objective, part.classes))
    log(INFO, "predictions of %d rows: %s", len(ids), path)
    reply = PredictionsReply(secrets.watch.seconds)
    site_state.end(context)
    return Message(reply.to_record(), reply_to=message)


Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, eq=False)
class _Step:
    """A step of a prediction at one party.

    Parameters
    ----------
    site : VerticalSite
    part : ModelPart
    secrets : Secrets
    peers : Peers
    number : int
        From 0.
    """

    site: VerticalSite
    part: ModelPart
    secrets: Secrets
    peers: Peers
    number: int

    @property
    def table(self) -> PartyTable:
        return self.site.table

    @property
    def num_rows(self) -> int:
        return len(self.table.ids)

    @property
    def asker(self) -> str:
        return self.site.config.asker

    @property
    def askers(self) -> Sequence[str]:
        """Who gets predictions: the party that asks, else every owner of labels."""
        return [self.asker] if self.asker else self.peers.names

    @property
    def is_last(self) -> bool:
        """Whether askers get their parts after this step."""
        routed = self.site.config.prediction == "routed"
        steps = num_steps(num_levels(self.part), routed=routed, has_asker=bool(self.asker))
        return self.number + 1 == steps

    @property
    def own_rows(self) -> BoolArray:
        """Rows whose predictions are this party's, (n,) bool."""
        if self.asker:
            return np.full(self.num_rows, self.asker == self.site.name)
        return self.table.owns

    def check(self) -> None:
        """Refuse other parties than the model's, and an asker that is none."""
        if self.peers.names != self.part.names:
            raise SiteFault(
                "bad-request", "the parties that are to predict are not those of the model"
            )
        if self.asker and self.asker not in self.peers.names:
            raise SiteFault(
                "bad-request", "vertical-xgboost.asker: must be one of the parties, or empty"
            )

    def owners(self, heard: Sealed, arrays: Arrays) -> dict[str, Sealed]:
        """Tell whose rows are own ones, at first; keep what others tell, at second."""
        if self.number == 0:
            arrays["own"] = np.packbits(self.table.owns)
            own = pack([self.table.owns])
            return {OWNED: {to: self._seal(OWNED, to, own) for to in self.peers.others}}
        if self.number == 1:
            self._check_senders(heard, self.peers.others)
            rows = {name: self._open_rows(OWNED, name, heard[name], 1)[0] for name in heard}
            owned = np.sum([self.table.owns, *rows.values()], axis=0)
            if (owned > 1).any():
                count = int(np.count_nonzero(owned > 1))
                raise SiteFault("bad-labels", f"{count} rows have labels at two parties")
            for name, mask in rows.items():
                arrays[f"owned-{name}"] = np.packbits(mask)
        return {}

    def route(self, heard: Sealed, arrays: Arrays) -> dict[str, Sealed]:
        """Move rows one level down."""
        part, me = self.part, self.site.name
        first = self.number == 0
        wave = Wave.start(part, self.num_rows) if first else self._wave(heard, arrays)
        sides = own_sides(part, features_of(part, self.table))
        wave, handed_on = wave.step(sides)
        arrays["sums"] = wave.sums
        places = sorted(wave.arrived)
        arrays["places"] = np.array(places, dtype=np.int32).reshape(-1, 2)
        rows = pack([wave.arrived[at] for at in places])
        arrays["rows"] = np.frombuffer(rows, dtype=np.uint8)
        for to in self.peers.others:  # as everybody expects it from the shape of the trees
            assert len(handed_on.get(to, [])) == len(expected(part, me, to, depth=self.number + 1))
        parts = {to: self._seal(ROWS, to, pack(each)) for to, each in handed_on.items()}
        return {ROWS: parts}

    def _wave(self, heard: Sealed, arrays: Arrays) -> Wave:
        places = [(int(tree), int(node)) for tree, node in arrays["places"].tolist()]
        kept = unpack(arrays["rows"].tobytes(), len(places), self.num_rows, sender="this party")
        wave = Wave(
            self.part, arrays["sums"].astype(np.float64), dict(zip(places, kept, strict=True))
        )
        coming = {
            name: expected(self.part, name, self.site.name, depth=self.number)
            for name in self.peers.others
        }
        self._check_senders(heard, [name for name, at in coming.items() if at])
        for name, part in heard.items():
            rows = self._open_rows(ROWS, name, part, len(coming[name]))
            wave = wave.with_arrived(dict(zip(coming[name], rows, strict=True)))
        return wave

    def answers(self, arrays: Arrays) -> dict[str, Sealed]:
        """What askers get of this party, each of its own rows alone."""
        rows = {name: self._rows_of(name, arrays) for name in self.askers}
        if self.site.config.prediction == "direct":
            sides = own_sides(self.part, features_of(self.part, self.table))
            # As long as if all rows were the receiver's: sizes do not tell who owns how many.
            # Never empty: padding would hide nothing of a receiver without rows.
            full = len(encode(_SIDES, pack(list(sides))))
            parts = {
                to: self._seal(SIDES, to, encode(_SIDES, pack(list(sides[:, mask]))), pad_to=full)
                for to, mask in rows.items()
                if to != self.site.name
            }
            return {SIDES: parts}
        sums = arrays["sums"].astype(np.float64)
        found: Sealed = {}
        for to, mask in rows.items():
            words = self._masked(to, sums[:, mask]).words
            if to == self.site.name:
                arrays["words"] = words
            else:
                full = (2 * sums.size + 1) * _WORD.itemsize
                found[to] = self._seal(SUMS, to, words.astype(_WORD).tobytes(), pad_to=full)
        return {SUMS: found}

    def _masked(self, asker: str, sums: FloatArray) -> MaskedVector:
        values = split_reals.split(sums.ravel(), num_sites=len(self.peers.names))
        step = sums_step(self.peers.names.index(asker))
        two = self.site.config.allow_two_parties
        return self.secrets.mask(self.peers, values, step=step, two=two)

    def margins_of_sides(self, heard: Sealed) -> FloatArray:
        """Margins of own rows, from the sides that others sealed."""
        self._check_senders(heard, self.peers.others)
        mask = self.own_rows
        count = int(np.count_nonzero(mask))
        own = own_sides(self.part, features_of(self.part, self.table))
        sides = {self.site.name: own[:, mask]}
        for name, part in heard.items():
            try:
                (bits,) = decode(self._open(SIDES, name, part), _SIDES)
            except ValueError:
                raise SiteFault("bad-request", f"{name}: sides of another form") from None
            sides[name] = unpack(bits, num_records(self.part, name), count, sender=name)
        return margins_by_sides(self.part, sides, count)

    def margins_of_sums(
        self, heard: Sealed, arrays: Mapping[str, NDArray[np.generic]]
    ) -> FloatArray:
        """Margins of own rows, from sums under masks."""
        self._check_senders(heard, self.peers.others)
        words = {self.site.name: arrays["words"].astype(np.uint64)}
        for name, part in heard.items():
            opened = self._open(SUMS, name, part)
            if len(opened) != words[self.site.name].nbytes:
                raise SiteFault("bad-request", f"{name}: sums of another number of rows")
            words[name] = np.frombuffer(opened, dtype=_WORD).astype(np.uint64)
        roster, step = self.peers.roster, sums_step(self.peers.place)
        masked = [
            MaskedVector(name, roster.run, step, roster.digest, each)
            for name, each in words.items()
        ]
        sums = split_reals.join(
            unmask_sum(masked, roster=roster, step=step), num_sites=len(roster.names)
        )
        start = np.array(self.part.base_margins) + single_leaves(self.part)
        return start[:, np.newaxis] + sums.reshape(len(start), -1)

    def _rows_of(self, asker: str, arrays: Mapping[str, NDArray[np.generic]]) -> BoolArray:
        if self.asker:
            return np.ones(self.num_rows, dtype=np.bool_)
        if asker == self.site.name:
            return self.table.owns
        packed = arrays[f"owned-{asker}"].astype(np.uint8)
        return np.unpackbits(packed, count=self.num_rows).astype(np.bool_)

    def _check_senders(self, heard: Sealed, senders: Sequence[str]) -> None:
        if missing := sorted(set(senders) - set(heard)):
            raise SiteFault("bad-request", f"nothing sealed by {', '.join(missing)} has come")
        if len(heard) != len(senders):
            raise SiteFault("bad-request", "sealed parts of parties that have nothing to send")

    def _seal(self, kind: str, to: str, payload: bytes, *, pad_to: int = 1) -> bytes:
        step = prediction_step(kind, self.number)
        return self.secrets.seal(self.peers, to, payload, step=step, pad_to=max(pad_to, 1))

    def _open(self, kind: str, sender: str, part: bytes) -> bytes:
        # What comes in a step was sealed in the one before; what askers get, in the last.
        sealed_at = self.number - (kind in (OWNED, ROWS))
        step = prediction_step(kind, sealed_at)
        return self.secrets.open(self.peers, sender, part, step=step)

    def _open_rows(self, kind: str, sender: str, part: bytes, count: int) -> BoolArray:
        return unpack(self._open(kind, sender, part), count, self.num_rows, sender=sender)
