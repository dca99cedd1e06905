"""Recorded runs of the vertical task: who learns what, and no more.

Each alarm is tried on something that discloses more, too: one that never rings would be none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message
from gmpy2 import mpz

from fedapp.run_config import read
from fedapp.vertical_run import disclosures
from tasks.secure.transcript import decode
from tasks.site.messages import HELLO
from tasks.vertical_xgboost import split_client
from tasks.vertical_xgboost.aggregate_messages import AGGREGATE, AggregateReply
from tasks.vertical_xgboost.buckets import bucket_columns
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.decide_messages import DECIDE, DecideReply, DecideRequest
from tasks.vertical_xgboost.end_messages import FINISH, FinishReply
from tasks.vertical_xgboost.level_messages import (
    HISTOGRAMS,
    HistogramsReply,
    HistogramsRequest,
)
from tasks.vertical_xgboost.messages import (
    BUCKETS,
    BUCKETS_STEP,
    LABELS,
    BucketsReply,
    LabelsReply,
    LabelsRequest,
)
from tasks.vertical_xgboost.paillier.ciphertexts import Ciphertexts
from tasks.vertical_xgboost.paillier.engine import engine_named
from tasks.vertical_xgboost.paillier.keys import PrivateKey
from tasks.vertical_xgboost.rows import read_table
from tasks.vertical_xgboost.set_up import map_as_bytes, renumbered_columns
from tests.paillier_keys import weak_key
from tests.vertical_frames import cut, random_frame
from tests.vertical_runs import Recorded, bytes_of, numbers_of, record

KEYS: dict[str, Any] = {"max_depth": 2, "num_trees": 2, "max_bin": 6, "min_child_weight": 0.1}

IN_CLEAR = {
    HELLO: (
        {"hello", "facts", "keys"},
        {"num-rows", "num-evaluation", "digest", "label-exponent", "paillier"},
    ),
    LABELS: ({"sealed", "masked", "masked-words", "seconds"}, set()),
    BUCKETS: ({"sealed", "buckets", "arrays", "seconds"}, {"gradient-exponent"}),
    HISTOGRAMS: ({"encrypted-shares", "refused", "masked", "masked-words", "seconds"}, set()),
    DECIDE: ({"arrays", *(f"sealed-leaves/site-{at}" for at in range(4)), "seconds"}, set()),
    AGGREGATE: ({"encrypted-total", "order", "sealed-orders", "refused", "seconds"}, set()),
    FINISH: ({"masked", "masked-words", "seconds"}, set()),
}
"""By message type: records of a reply, and plain settings in it. Whatever is new must come here."""


NAMES = {f"site-{at}" for at in range(4)}
LAYOUTS = {f"{kind}/{at}" for kind in ("num-buckets", "has-missing") for at in range(4)}

TO_PARTIES: dict[str, dict[str, set[str]]] = {
    HELLO: {"hello": {"fingerprint"}},
    LABELS: {
        "labels": {"roster", "paillier", "split-clients", "label-exponent", "weight-exponent"}
    },
    BUCKETS: {"buckets": {"base-margins", "folder"}, "sealed": NAMES},
    HISTOGRAMS: {
        "histograms": {"tree", "level", "nodes"},
        "decisions": {"decisions"},
        "sealed-leaves": {"weights"},
        "orders": NAMES,
        "sealed-orders": NAMES,
        "sealed": NAMES,
        "start": {"gradient-exponent"},
        "layouts": LAYOUTS,
    },
    AGGREGATE: {"aggregate": {"tree", "level"}, "sealed-shares": NAMES},
    DECIDE: {
        "decide": {"tree", "level", "may-prune"},
        "encrypted-totals": NAMES,
        "refused": NAMES,
    },
    FINISH: {
        "finish": {"trees-to-keep", "folder"},
        "decisions": {"decisions"},
        "sealed-leaves": {"weights"},
    },
}
"""By message type: records of a request, and what is in each. Whatever is new must come here."""


def frames_with_marks() -> list[pd.DataFrame]:
    """Ids, values, names and thresholds that cannot stand in a message by chance."""
    frame = random_frame(4, rows=160, objective="reg:squarederror")
    names = {name: f"secret-column-{name}" for name in frame.columns if name not in ("id", "label")}
    frame = frame.rename(columns=names)
    frame["id"] = [f"patient-{number}-of-the-register" for number in frame["id"]]
    return cut(frame, parties=4, labels="even")


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A recorded run of a regression under encryption."""
    keys = {"objective": "reg:squarederror", "encryption": "paillier", **KEYS}
    recorded = record(tmp_path_factory.mktemp("encrypted"), frames_with_marks(), **keys)
    assert recorded.result.summary["status"] == "ok", recorded.result.summary["reason"]
    assert recorded.result.summary["central"]["same-trees"] is True
    return recorded


@pytest.fixture(scope="module")
def by_source(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A recorded run in which sources add up, and label owners refuse candidates."""
    keys = {"objective": "reg:squarederror", "encryption": "paillier", "aggregator": "source"}
    recorded = record(
        tmp_path_factory.mktemp("source"), frames_with_marks(), min_instances=2, **keys, **KEYS
    )
    assert recorded.result.summary["central"]["same-trees"] is True
    return recorded


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The same without encryption: what alarms must ring at."""
    keys = {"objective": "reg:squarederror", "encryption": "none", **KEYS}
    return record(tmp_path_factory.mktemp("plain"), frames_with_marks(), **keys)


# At the server ---------------------------------------------------------------------------------


def test_requests_have_nothing_that_is_not_listed(encrypted: Recorded, by_source: Recorded) -> None:
    seen = set()
    for request, _ in [*encrypted.messages, *by_source.messages]:
        listed = TO_PARTIES[request.metadata.message_type]
        assert set(request.content) <= set(listed)
        assert not request.content.metric_records
        for name, found in request.content.items():
            assert set(found) <= listed[name], (request.metadata.message_type, name)
            seen.add((request.metadata.message_type, name))
    assert seen == {(kind, name) for kind, records in TO_PARTIES.items() for name in records}


def test_replies_have_nothing_in_clear_that_is_not_listed(
    encrypted: Recorded, by_source: Recorded
) -> None:
    seen = set()
    for request, reply in [*encrypted.messages, *by_source.messages]:
        kind = request.metadata.message_type
        records, settings = IN_CLEAR[kind]
        sealed = {"sealed-shares", "sealed-orders", "order"} if kind != HELLO else set()
        assert set(reply.content) <= records | sealed, kind
        for name in ("facts", "buckets"):
            if name in reply.content.config_records:
                assert set(reply.content.config_records[name]) <= settings
        seen.add(kind)
    assert seen == set(IN_CLEAR)


def test_arrays_of_replies_are_those_listed(encrypted: Recorded) -> None:
    for request, reply in encrypted.messages:
        kind = request.metadata.message_type
        for key in numbers_of(reply):
            name = key.split("/")[1] if key.startswith("arrays/") else key
            allowed = {
                BUCKETS: {"num-buckets", "has-missing", "ranks"},
                DECIDE: {"gains", "counts", "places"},
            }.get(kind, set())
            assert name in allowed | {"masked-words/words"}, (kind, key)


def secrets_of(frames: Iterable[pd.DataFrame]) -> dict[str, set[bytes]]:
    """Byte strings by what they would disclose."""
    config = VerticalXGBoostConfig(objective="reg:squarederror", **KEYS)
    found: dict[str, set[bytes]] = {"id": set(), "name": set(), "label": set(), "threshold": set()}
    for frame in frames:
        table = read_table(frame, id_column="id", label_column="label", config=config, seed=0)
        found["id"] |= {text.encode() for text in table.ids}
        found["name"] |= {text.encode() for text in table.feature_names}
        own = table.labels[table.owns]
        found["label"] |= {np.float64(label).tobytes() for label in own}
        found["label"] |= {repr(float(label)).encode() for label in own}
        buckets, _ = bucket_columns(table.features, ~table.is_evaluation, max_bin=config.max_bin)
        for feature in buckets:
            # Whole numbers as 4 bytes may stand anywhere by chance.
            odd = [t for t in feature.thresholds if t != np.round(t)]
            found["threshold"] |= {np.float32(t).tobytes() for t in odd}
            found["threshold"] |= {np.float64(t).tobytes() for t in odd}
            found["threshold"] |= {repr(float(t)).encode() for t in odd}
    return found


def disclosed(messages: Iterable[Message], secrets: dict[str, set[bytes]]) -> set[str]:
    """What of the secrets stands in messages, 8 bytes and longer anywhere, shorter aligned."""
    found = set()
    for message in messages:
        for raw in bytes_of(message).values():
            words = {raw[at : at + 4] for at in range(0, len(raw), 4)}
            for kind, values in secrets.items():
                if any(v in words if len(v) == 4 else v in raw for v in values):
                    found.add(kind)
    return found


def test_no_label_id_name_or_threshold_is_in_any_message(encrypted: Recorded) -> None:
    secrets = secrets_of(frames_with_marks())
    assert all(len(values) > 5 for values in secrets.values())
    both = [message for pair in encrypted.messages for message in pair]
    # 4 bytes of ciphertext are a given threshold once in 2**32 words; there are about 2**18.
    assert disclosed(both, secrets) == set()


def test_the_alarm_rings_for_labels_and_thresholds(encrypted: Recorded) -> None:
    frames = frames_with_marks()
    secrets = secrets_of(frames)
    request, reply = encrypted.messages[-1]
    for values in secrets.values():
        leaking = Message(reply.content, reply_to=request)
        leaking.content["sealed"] = _bytes_record(b"\0" * 8 + next(iter(values)))
        assert len(disclosed([leaking], secrets)) == 1
        del leaking.content["sealed"]


def _bytes_record(data: bytes) -> Any:
    from flwr.app import ConfigRecord

    return ConfigRecord({"leak": data})


def small_words(data: bytes) -> float:
    """Share of 8-byte words whose upper bytes are a sign: of sums nearly all, of noise none."""
    words = np.frombuffer(data[: len(data) // 8 * 8], dtype="<i8")
    return float(np.mean(np.abs(words.astype(np.float64)) < 2.0**52)) if len(words) else 0.0


def shares_of(reply: Message) -> dict[str, Any]:
    records = reply.content.config_records
    return dict(records["encrypted-shares" if "encrypted-shares" in records else "shares"])


def test_sums_are_not_in_clear(encrypted: Recorded, plain: Recorded) -> None:
    for recorded, low, high in ((encrypted, 0.0, 0.2), (plain, 0.9, 1.0)):
        shares = [
            small_words(bytes(value))  # type: ignore[arg-type]  # bytes in either case
            for _, _, reply in recorded.of_type(HISTOGRAMS)
            for value in shares_of(reply).values()
        ]
        totals = [
            small_words(total)
            for _, request, _ in recorded.of_type(DECIDE)
            for total in totals_of(request).values()
        ]
        assert len(shares) == 4 * 4 * 4
        assert all(low <= share <= high for share in [*shares, *totals])


def test_sealed_parts_differ_from_what_they_hold(encrypted: Recorded) -> None:
    config = VerticalXGBoostConfig(objective="reg:squarederror", **KEYS)
    owned = {}
    for at, frame in enumerate(frames_with_marks()):
        table = read_table(frame, id_column="id", label_column="label", config=config, seed=0)
        owned[f"site-{at}"] = np.packbits(table.owns).tobytes()
    for party, _, reply in encrypted.of_type(LABELS):
        sealed = reply.content.config_records["sealed"]
        assert set(sealed) == set(owned) - {party}
        for part in sealed.values():
            assert owned[party] not in bytes(part)  # type: ignore[arg-type]
            assert len(bytes(part)) == len(owned[party]) + 121  # type: ignore[arg-type]


def test_masked_words_are_uniform(encrypted: Recorded) -> None:
    words = np.concatenate(
        [
            reply.content.array_records["masked-words"]["words"].numpy()
            for _, reply in encrypted.messages
            if "masked-words" in reply.content
        ]
    )
    assert len(words) >= 4 * (4 + 2 * 5)
    # A sum of a hundred rows in fixed point is below 2**40; a mask is below 2**44 once in 2**20.
    assert (words > 2**44).all()
    assert 0.2 < np.mean(words > 2**63) < 0.8


def test_an_introduction_does_not_tell_which_labels_a_party_has(tmp_path: Path) -> None:
    """Negatives alone, positives alone, or no labels: keys, digests and names apart, the same."""
    frames = cut(random_frame(4, rows=120), parties=3, labels="even")
    label = pd.concat([frame[["id", "label"]] for frame in frames]).dropna().set_index("id")
    for frame, own in zip(frames, (1, 0), strict=False):
        joined = frame["id"].map(label["label"])
        frame["label"] = joined.where(joined == own)
    frames[2] = frames[2].drop(columns="label")
    recorded = record(tmp_path, frames, **KEYS)
    assert recorded.result.summary["status"] == "ok", recorded.result.summary["reason"]
    told = [dict(reply.content.config_records["facts"]) for *_, reply in recorded.of_type(HELLO)]
    assert len(told) == 3
    for facts in told:
        del facts["paillier"]
        assert facts == told[0]


# At a source and at a split client ----------------------------------------------------------------


def totals_of(request: Message) -> Mapping[str, bytes]:
    """Totals of a request, under the name that fits the run's encryption."""
    plain = "encrypted-totals" not in request.content.config_records
    return DecideRequest.from_record(
        request.content, protection="clear" if plain else "encrypted"
    ).totals


def split_clients(recorded: Recorded) -> tuple[int, ...]:
    _, request, _ = next(recorded.of_type(LABELS))
    return LabelsRequest.from_record(request.content).split_clients


def test_only_split_clients_hear_totals(encrypted: Recorded) -> None:
    clients = split_clients(encrypted)
    asked = set()
    for party, request, _ in encrypted.of_type(DECIDE):
        for source in totals_of(request):
            place = int(source.removeprefix("site-"))
            assert f"site-{clients[place]}" == party != source
            asked.add(source)
    assert asked == {f"site-{at}" for at in range(4)}


def test_a_source_cannot_decrypt_its_own_sums(encrypted: Recorded) -> None:
    """Shares for a source carry the key id of its split client, and of nobody else."""
    from tasks.vertical_xgboost.paillier.keys import PublicKey
    from tasks.vertical_xgboost.party_facts import PaillierBundle, PartyFacts

    key_ids = {}
    for party, _, reply in encrypted.of_type(HELLO):
        facts = PartyFacts.from_facts(dict(reply.content.config_records["facts"]))
        data = PaillierBundle.from_bytes(facts.paillier).key
        key_ids[party] = PublicKey.from_bytes(data, allow_weak_key=True).key_id
    clients = split_clients(encrypted)
    for _, _, reply in encrypted.of_type(HISTOGRAMS):
        for source, data in shares_of(reply).items():
            place = int(source.removeprefix("site-"))
            assert bytes(data)[:16] == key_ids[f"site-{clients[place]}"]  # type: ignore[arg-type]


def test_a_split_client_is_not_told_the_order(encrypted: Recorded) -> None:
    clients = split_clients(encrypted)
    orders: dict[str, set[bytes]] = {}
    for party, request, _ in encrypted.of_type(HISTOGRAMS):
        told = HistogramsRequest.from_record(request.content).orders
        decrypts = {f"site-{s}" for s, at in enumerate(clients) if f"site-{at}" == party}
        assert set(told) == {f"site-{at}" for at in range(4)} - decrypts
        for source, order in told.items():
            assert sorted(order.tolist()) == list(range(len(order)))
            if len(order) > 6:
                orders.setdefault(source, set()).add(order.tobytes())
    for drawn in orders.values():  # all parties of a level hear the same, every level another
        assert len(drawn) == 4


def test_a_split_client_hears_of_candidates_only_when_they_win(encrypted: Recorded) -> None:
    """What a split client is told of a candidate is a place in the secret order."""
    for _, request, _ in encrypted.of_type(DECIDE):
        content = request.content
        assert set(content) == {"decide", "encrypted-totals", "refused"}
        assert set(content.config_records["decide"]) == {"tree", "level", "may-prune"}
        assert not list(content.array_records["refused"])


@pytest.mark.parametrize("shuffle", [True, False])
def test_places_are_numbers_of_candidates_only_without_the_shuffle(
    shuffle: bool, tmp_path: Path
) -> None:
    keys = {**KEYS, "objective": "reg:squarederror", "shuffle": shuffle}
    recorded = record(tmp_path, frames_with_marks(), **keys)
    told = [
        (decision.place, decision.candidate)
        for _, request, _ in recorded.of_type(HISTOGRAMS)
        for decision in HistogramsRequest.from_record(request.content).decisions
    ]
    assert len(told) >= 4 * 4
    assert all(place == candidate for place, candidate in told) is not shuffle


def test_a_split_client_computes_from_sums_alone() -> None:
    """The function that judges candidates has no rows, features, buckets or orders to see."""
    names = split_client.node_offers.__annotations__
    assert set(names) == {"sums", "rule", "are_last", "may_prune", "refused", "return"}


def test_a_label_owner_gets_buckets_of_its_own_rows_only(encrypted: Recorded) -> None:
    config = VerticalXGBoostConfig(objective="reg:squarederror", **KEYS)
    tables = {
        f"site-{at}": read_table(frame, id_column="id", label_column="label", config=config, seed=0)
        for at, frame in enumerate(frames_with_marks())
    }
    frame = len(map_as_bytes(np.zeros((0, 0), dtype=np.uint8), np.zeros((0, 0), dtype=np.bool_)))
    counts = {name: int(table.owns.sum()) for name, table in tables.items()}
    assert len(set(counts.values())) > 1
    seen = 0
    for source, receiver, payload in encrypted.sealed_at(BUCKETS_STEP):
        assert len(payload) == frame + counts[receiver] * len(tables[source].feature_names)
        seen += 1
    assert seen == 4 * 3


@pytest.mark.parametrize("labels", ["skewed", "one"])
def test_sizes_of_sealed_parts_do_not_tell_who_has_how_many_labels(
    labels: str, tmp_path: Path
) -> None:
    frames = cut(random_frame(4, rows=90), parties=4, labels=labels)
    for keys in ({"aggregator": "server"}, {"aggregator": "source"}):
        recorded = record(tmp_path, frames, **KEYS, **keys)
        assert recorded.result.summary["status"] == "ok"
        for kind in (LABELS, BUCKETS, HISTOGRAMS):
            for _, _, reply in recorded.of_type(kind):
                for name, record_ in reply.content.config_records.items():
                    if name.startswith("sealed"):
                        sizes = {len(bytes(part)) for part in record_.values()}
                        assert len(sizes) <= 1 or name == "sealed-shares", (kind, name)


def test_gains_and_records_are_what_the_server_reads(encrypted: Recorded) -> None:
    candidates = {
        party: BucketsReply.from_record(
            reply.content, has_order=False, has_splits=True
        ).layout.num_candidates
        for party, _, reply in encrypted.of_type(BUCKETS)
    }
    for _, request, reply in encrypted.of_type(DECIDE):
        totals = totals_of(request)
        gains = [v for k, v in numbers_of(reply).items() if k.startswith("arrays/gains/")]
        nodes = len(gains[0])
        is_last = nodes > 1
        answer = DecideReply.from_record(
            reply.content,
            candidates={source: candidates[source] for source in totals},
            parties=[f"site-{at}" for at in range(4)],
            are_last=[is_last] * nodes,
        )
        for offers in answer.offers.values():
            for offer in offers:
                assert len(offer.sealed) == is_last * len(offer.places)
                assert (offer.leaf is None) == bool(len(offer.places))
                assert all(len(each) == 4 for each in offer.sealed)
                sizes = {len(part) for each in offer.sealed for part in each.values()}
                assert sizes <= {121 + 8, 121 + 16}


def test_the_ledger_says_that_plain_sums_are_disclosed(
    encrypted: Recorded, plain: Recorded
) -> None:
    for recorded, is_plain in ((encrypted, False), (plain, True)):
        words = {
            str(row["reveals"])
            for row in recorded.result.ledger
            if row["step"] == "histograms" and row["receiver"] == "server"
        }
        assert all(("IN CLEAR" in text) == is_plain for text in words)


def test_a_refused_candidate_is_hidden_from_its_split_client(tmp_path: Path) -> None:
    keys = {"encryption": "paillier", "objective": "reg:squarederror", "min_instances": 8, **KEYS}
    recorded = record(tmp_path, frames_with_marks(), **keys)
    assert recorded.result.summary["central"]["same-trees"] is True
    masks = [
        mask
        for _, request, _ in recorded.of_type(DECIDE)
        for mask in DecideRequest.from_record(
            request.content, protection="encrypted"
        ).refused.values()
    ]
    assert any(mask.any() for mask in masks)
    assert all(not mask[0].any() for mask in masks)  # full sums are never refused
    assert "mask" in recorded.result.summary["crypto-seconds"]


# Where sources add up ---------------------------------------------------------------------------


def test_sources_get_ciphertexts_sealed_and_decrypt_none(tmp_path: Path) -> None:
    keys = {"encryption": "paillier", "objective": "reg:squarederror", "aggregator": "source"}
    recorded = record(tmp_path, frames_with_marks(), **keys, **KEYS)
    assert recorded.result.summary["central"]["same-trees"] is True
    clients = split_clients(recorded)
    both = [message for pair in recorded.messages for message in pair]
    assert disclosed(both, secrets_of(frames_with_marks())) == set()
    for party, request, reply in recorded.of_type(AGGREGATE):
        place = int(party.removeprefix("site-"))
        assert set(request.content) == {"aggregate", "sealed-shares"}
        assert set(reply.content) == {"encrypted-total", "order", "sealed-orders", "seconds"}
        # The order goes to the other label owners, not to the split client.
        told = set(reply.content.config_records["sealed-orders"])
        assert told == {f"site-{at}" for at in range(4)} - {party, f"site-{clients[place]}"}
        total = bytes(reply.content.config_records["encrypted-total"]["total"])  # type: ignore[arg-type]
        assert small_words(total) < 0.2
    for _, request, _ in recorded.of_type(HISTOGRAMS):
        assert HistogramsRequest.from_record(request.content).orders == {}


def key_numbered(key_id: bytes) -> PrivateKey:
    return next(weak_key(at) for at in range(10) if weak_key(at).public.key_id == key_id)


def test_a_source_s_total_is_not_the_product_of_the_shares_that_it_got(tmp_path: Path) -> None:
    """It is re-randomised: with the shares that it knows nobody finds another one."""
    keys = {"encryption": "paillier", "aggregator": "source", "shuffle": False}
    recorded = record(tmp_path, frames_with_marks(), objective="reg:squarederror", **keys, **KEYS)
    seen = 0
    for party, request, reply in recorded.of_type(AGGREGATE):
        at = request.content.config_records["aggregate"]
        if at["tree"] or at["level"]:
            continue
        total = bytes(reply.content.config_records["encrypted-total"]["total"])  # type: ignore[arg-type]
        key = key_numbered(total[:16])
        width, square = key.public.ciphertext_bytes, int(key.public.n_squared)
        count = (len(total) - 16) // width
        products = [1] * count
        shares = [
            decode(payload, "fedapp/vertical-share/1")[0]
            for _, receiver, payload in recorded.sealed_at("share-0-0")
            if receiver == party
        ]
        assert len(shares) == 4
        for share in shares:
            assert share[:16] == total[:16]
            products = [
                a * b % square for a, b in zip(products, numbers(share, width), strict=True)
            ]
        assert all(a != b for a, b in zip(products, numbers(total, width), strict=True))
        engine = engine_named("gmpy2")
        plain = [
            engine.decrypt(key, Ciphertexts(key.public, tuple(map(mpz, each))))
            for each in (products, numbers(total, width))
        ]
        assert plain[0] == plain[1]
        seen += 1
    assert seen == 4


def numbers(data: bytes, width: int) -> list[int]:
    """Ciphertexts behind the key's id."""
    return [int.from_bytes(data[at : at + width], "big") for at in range(16, len(data), width)]


def test_a_source_draws_another_order_for_each_level(by_source: Recorded) -> None:
    drawn: dict[str, list[bytes]] = {}
    for kind in (BUCKETS, AGGREGATE):
        for party, _, reply in by_source.of_type(kind):
            order = reply.content.array_records["order"]["order"].numpy()
            assert sorted(order.tolist()) == list(range(len(order)))
            if len(order) > 9:  # of which one in millions is that by chance
                assert not np.array_equal(order, np.arange(len(order)))
                drawn.setdefault(party, []).append(order.tobytes())
    assert drawn
    for orders in drawn.values():
        assert len(set(orders)) == len(orders) == 1 + 4


def test_features_are_renumbered_by_chance() -> None:
    config = VerticalXGBoostConfig(objective="reg:squarederror", **KEYS)
    frame = random_frame(4, rows=60, objective="reg:squarederror")
    table = read_table(frame, id_column="id", label_column="label", config=config, seed=0)
    drawn = [renumbered_columns(table, config) for _ in range(3)]
    assert len({own.column.tobytes() for own, _ in drawn}) > 1  # the same by 8!**-2
    for own, bucket_map in drawn:
        assert sorted(own.column.tolist()) == list(range(8))
        plain, expected = bucket_columns(
            table.features, ~table.is_evaluation, max_bin=config.max_bin
        )
        assert np.array_equal(bucket_map, expected[own.column])
        assert [b.num_buckets for b in own.buckets] == [plain[at].num_buckets for at in own.column]


def test_the_ledger_names_refusals_and_seconds_wherever_they_travel() -> None:
    for words in (HistogramsReply.reveals, DecideRequest.reveals, AggregateReply.reveals):
        assert "min-instances" in words
    for reply in (LabelsReply, BucketsReply, HistogramsReply, AggregateReply, DecideReply):
        assert "seconds per operation" in reply.reveals
    assert "seconds per operation" in FinishReply.reveals


@pytest.mark.parametrize(
    ("setting", "message", "told"),
    [
        ({}, LABELS, "sum of its labels"),
        ({"base-score": "0.5"}, LABELS, "their number under masks"),
        ({"warm-start": "run-1"}, LABELS, "their number under masks"),
        ({"weight": "w"}, LABELS, "sums of row weights"),
        ({"subsample": 0.5}, DECIDE, "an equation about their labels"),
        ({"colsample-bytree": 0.5}, HISTOGRAMS, "rank of each unnamed feature"),
        ({"warm-start": "run-1"}, HELLO, "digest of the model's shape"),
        ({"resume": "runs/one"}, HELLO, "which training is resumed"),
        ({"resume": "runs/one"}, HELLO, "how many trees of the interrupted training"),
    ],
)
def test_the_ledger_names_what_a_setting_adds(
    setting: dict[str, Any], message: str, told: str
) -> None:
    """And says it of no run without that setting."""

    def words(**settings: Any) -> str:
        general = {key: value for key, value in settings.items() if key == "resume"}
        own = {f"vertical-xgboost.{key}": settings[key] for key in settings if key not in general}
        found = disclosures(read({"task": "vertical-xgboost", **general, **own}))[message]
        return f"{found.request} {found.reply}"

    assert told in words(**setting)
    assert not setting or told not in words()
