"""Whose keys a party takes: those that the others signed, and that its operator has pinned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from tasks.secure.identity import create_identity
from tasks.secure.keys import SiteKeys
from tasks.secure.roster import Roster
from tasks.site.faults import SiteFault
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.messages import LABELS, LabelsRequest
from tasks.vertical_xgboost.paillier.keys import PrivateKey
from tasks.vertical_xgboost.party_facts import PaillierBundle
from tasks.vertical_xgboost.peers import Peers, accept_peers
from tasks.vertical_xgboost.site_state import Secrets, run_name
from tests.paillier_keys import weak_key
from tests.vertical_attacks import Attacked, Send, attack

WEAK = VerticalXGBoostConfig(key_bits=1024, allow_weak_key=True)
RUN = 7


def parties_of(keys: Mapping[str, PrivateKey]) -> dict[str, Secrets]:
    found = {}
    for name, key in keys.items():
        context = Context(run_id=RUN, node_id=1, node_config={}, state=RecordDict(), run_config={})
        own = SiteKeys.generate(site=name, run=run_name(RUN))
        found[name] = Secrets(context, own, key)
    return found


def accept(
    parties: Mapping[str, Secrets],
    config: VerticalXGBoostConfig = WEAK,
    *,
    bundles: Mapping[str, PaillierBundle] | None = None,
    split_clients: tuple[int, ...] = (1, 2, 0),
) -> Peers:
    """What the first party makes of the keys of all."""
    told = {name: party.paillier_bundle() for name, party in parties.items()} | dict(bundles or {})
    roster = Roster.from_bundles([p.keys.public for p in parties.values()], run=run_name(RUN))
    return accept_peers(
        next(iter(parties.values())),
        config,
        roster=roster.to_bytes(),
        paillier=tuple(told[name].to_bytes() for name in roster.names),
        split_clients=split_clients,
    )


def three() -> dict[str, Secrets]:
    return parties_of({name: weak_key(at) for at, name in enumerate("abc")})


def test_keys_that_fit_are_taken() -> None:
    peers = accept(three())
    assert peers.names == ("a", "b", "c")
    assert peers.others == ["b", "c"]
    assert [key.n for key in peers.paillier if key] == [weak_key(at).public.n for at in range(3)]


def test_a_key_that_its_owner_did_not_sign_is_refused() -> None:
    parties = three()
    other = PaillierBundle(weak_key(5).public.to_bytes(), parties["b"].paillier_bundle().signature)
    for bundle in (other, parties["c"].paillier_bundle()):
        with pytest.raises(SiteFault, match="b: its Paillier key does not carry its signature"):
            accept(parties, bundles={"b": bundle})


def test_two_parties_with_one_key_are_refused() -> None:
    same = parties_of({"a": weak_key(0), "b": weak_key(1), "c": weak_key(1)})
    with pytest.raises(SiteFault, match="b and c sent the same Paillier key"):
        accept(same)


def test_keys_of_another_length_than_the_settings_say_are_refused() -> None:
    config = WEAK.model_copy(update={"key_bits": 2048})
    with pytest.raises(SiteFault, match="a: a Paillier key of 1024 bits, asked for"):
        accept(three(), config)
    strict = VerticalXGBoostConfig()
    with pytest.raises(SiteFault, match="1024"):
        accept(three(), strict)


@pytest.mark.parametrize(
    "clients", [(0, 2, 1), (1, 2, 3), (1, -1, 0), (1, 2), (1, 2, 0, 0)], ids=str
)
def test_split_clients_are_other_parties(clients: tuple[int, ...]) -> None:
    with pytest.raises(SiteFault) as caught:
        accept(three(), split_clients=clients)
    assert caught.value.code == "bad-request"


def test_two_parties_of_three_are_no_sum(tmp_path: Path) -> None:
    """The server may not leave a party out, and find another's labels by subtraction."""
    told: list[str] = []

    def before(party: str, kind: str, content: RecordDict, send: Send) -> None:
        if kind == LABELS and party == "site-0":
            request = LabelsRequest.from_record(content)
            bundles = Roster.from_bytes(request.roster, run=_run_of(request)).bundles[:2]
            roster = Roster.from_bundles(bundles, run=_run_of(request))
            fewer = dataclasses.replace(
                request,
                roster=roster.to_bytes(),
                paillier=request.paillier[:2],
                split_clients=(1, 0),
            )
            told.append(send(fewer.to_record(), None).error.reason)

    attack(tmp_path, before=before)
    assert told[0].startswith("too-few-sites: ")


def _run_of(request: LabelsRequest) -> str:
    from tasks.secure.keys import PublicBundle
    from tasks.secure.transcript import decode

    first, *_ = decode(request.roster, "fedapp/roster/1")
    return PublicBundle.from_bytes(first).run


# Node configuration -----------------------------------------------------------------------------


@pytest.fixture
def identities(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Node configuration with a lasting key for each of three parties, and who pins whom."""
    names = [f"site-{at}" for at in range(3)]
    codes = {name: create_identity(tmp_path / f"{name}.pem") for name in names}
    pins = {
        name: ", ".join(f"{other}={code}" for other, code in codes.items() if other != name)
        for name in names
    }
    return {
        name: {
            "identity-path": str(tmp_path / f"{name}.pem"),
            "pinned-sites": pins[name],
            "require-pinned": True,
        }
        for name in names
    }


def test_parties_that_are_pinned_train(
    identities: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    assert attack(tmp_path, nodes=identities).summary["status"] == "ok"


def test_a_key_other_than_the_pinned_one_is_refused(
    identities: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    del identities["site-0"]["identity-path"]
    attacked = attack(tmp_path, nodes=identities)
    assert attacked.summary["status"] == "refused"
    assert "site-0: its key has the fingerprint" in attacked.reason


@pytest.mark.parametrize("required", [True, False])
def test_an_unpinned_party_is_refused_where_pins_are_required(
    required: bool,
    identities: dict[str, dict[str, Any]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = identities["site-1"]
    node["require-pinned"] = required
    node["pinned-sites"] = str(node["pinned-sites"]).split(",")[0]
    attacked = attack(tmp_path, nodes=identities)
    if required:
        assert attacked.reason == "site-1: site-2: no fingerprint is given for it"
    else:
        assert attacked.summary["status"] == "ok"
        words = "keys taken at the server's word, with no fingerprint in pinned-sites: site-2"
        assert words in caplog.text


def with_an_invention(directory: Path, node: dict[str, Any]) -> tuple[Attacked, str]:
    """The server adds a party of its own, to which site-1 would tell whose labels it owns."""
    told: list[str] = []

    def before(party: str, kind: str, content: RecordDict, send: Send) -> None:
        if kind != LABELS or party != "site-1":
            return
        request = LabelsRequest.from_record(content)
        run = _run_of(request)
        keys = SiteKeys.generate(site="zz", run=run)
        roster = Roster.from_bytes(request.roster, run=run)
        more = Roster.from_bundles([*roster.bundles, keys.public], run=run)
        bundle = PaillierBundle(b"", keys.sign(PaillierBundle.signed(run, "zz", b"")))
        larger = LabelsRequest(
            more.to_bytes(), (*request.paillier, bundle.to_bytes()), (3, 3, 3, 0), 0
        )
        reply = send(larger.to_record(), None)
        told.append(reply.error.reason if reply.has_error() else "answered")

    attacked = attack(directory, before=before, nodes={"site-1": node})
    return attacked, told[0]


def test_an_invention_of_the_server_is_refused_where_pins_are_required(tmp_path: Path) -> None:
    pins = {"pinned-sites": "", "require-pinned": True}
    assert with_an_invention(tmp_path, pins)[1].startswith("unpinned-site: ")
    assert with_an_invention(tmp_path, {})[1] == "answered"


@pytest.mark.parametrize("text", ["site-0", "site-0=", "site-0=ABCD"])
def test_pins_of_another_form_are_refused(text: str, tmp_path: Path) -> None:
    attacked = attack(tmp_path, nodes={"site-1": {"pinned-sites": text}})
    assert attacked.summary["status"] == "refused"
    assert attacked.reason.startswith("site-1: ")
    assert "fingerprint" in attacked.reason
