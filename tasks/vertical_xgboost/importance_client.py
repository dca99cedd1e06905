"""A party's half of the importance of features: which splits share a column, and masked covers."""

from __future__ import annotations

from flwr.app import Context, Message

from tasks.secure import split_reals
from tasks.site.faults import SiteFault
from tasks.site.messages import TaskPart
from tasks.site.requests import read_request
from tasks.vertical_xgboost import site_state
from tasks.vertical_xgboost.feature_importance import are_groups, own_covers, own_groups
from tasks.vertical_xgboost.importance_messages import (
    IMPORTANCE_STEP,
    ImportanceReply,
    ImportanceRequest,
    SplitColumns,
)
from tasks.vertical_xgboost.model_part import ModelPart
from tasks.vertical_xgboost.peers import accept_roster
from tasks.vertical_xgboost.prediction_messages import PartFacts
from tasks.vertical_xgboost.site import VerticalSite
from tasks.vertical_xgboost.site_state import Secrets


def introduction(site: VerticalSite, context: Context) -> TaskPart:
    """What a party of a trained model adds: keys, which model, which splits share a column."""
    part = site.known_part
    plain = site.config.model_copy(update={"encryption": "none"})  # sums are masked
    secrets = Secrets.draw(context, site.name, plain)
    facts = PartFacts.of(part, num_rows=len(site.table.ids), digest=site.table.digest())
    columns = _columns(part, consents=site.consents)
    if not site_state.has_begun(context):
        site_state.expect_next(context, "importance")
    return TaskPart(secrets.keys.public.to_bytes(), {**facts.to_facts(), **columns.to_facts()})


def importance(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``importance``: covers by feature, under masks."""
    site_state.expect(context, "importance")
    request = read_request(lambda: ImportanceRequest.from_record(message.content))
    secrets, part = Secrets.known(context), site.known_part
    peers = accept_roster(secrets, request.roster)
    _check_groups(request, part)
    if peers.names != part.names:
        raise SiteFault("bad-request", "the parties that are asked are not those of the model")
    covers = split_reals.split(own_covers(part, request.groups), num_sites=len(peers.names))
    masked = secrets.mask(peers, covers, step=IMPORTANCE_STEP, two=site.config.allow_two_parties)
    reply = ImportanceReply(masked, secrets.watch.seconds)
    site_state.end(context)
    return Message(reply.to_record(), reply_to=message)


def _columns(part: ModelPart, *, consents: bool) -> SplitColumns:
    groups, names = own_groups(part)
    return SplitColumns(groups, names if consents else None)


def _check_groups(request: ImportanceRequest, part: ModelPart) -> None:
    """Refuse groups that are not of the model's splits, or not what this party told."""
    splits = [split for tree in part.trees for split in tree.splits.values()]
    counts = {name: sum(split.source == name for split in splits) for name in part.names}
    told = {name: len(groups) for name, groups in request.groups.items()}
    if told != counts or not all(are_groups(groups) for groups in request.groups.values()):
        raise SiteFault("bad-request", "groups: must be one a split of each party of the model")
    if request.groups[part.name] != own_groups(part)[0]:
        raise SiteFault("bad-request", "groups: of this party are not those that it told")
