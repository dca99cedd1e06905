"""A party's half of an export: its part of the model, in clear, where it consents."""

from __future__ import annotations

from flwr.app import Context, Message

from tasks.site.faults import SiteFault
from tasks.site.messages import TaskPart
from tasks.site.requests import read_request
from tasks.vertical_xgboost import site_state
from tasks.vertical_xgboost.export_messages import ExportReply, ExportRequest
from tasks.vertical_xgboost.prediction_messages import PartFacts
from tasks.vertical_xgboost.site import VerticalSite


def check_consent(site: VerticalSite) -> None:
    """Refuse the export where the party does not consent.

    Raises
    ------
    SiteFault
        ``"no-consent"``.
    """
    if site.consents:
        return
    where = "vertical-xgboost.export-consent" if site.simulated else 'node config "export-consent"'
    raise SiteFault(
        "no-consent", f"{where} is not true: this party does not let its part of the model be seen"
    )


def introduction(site: VerticalSite, context: Context) -> TaskPart:
    """What a party that consents adds to its introduction: which model it has."""
    check_consent(site)
    facts = PartFacts.of(site.known_part, num_rows=len(site.table.ids), digest=site.table.digest())
    if not site_state.has_begun(context):
        site_state.expect_next(context, "export")
    return TaskPart(b"", facts.to_facts())


def export(message: Message, site: VerticalSite, context: Context) -> Message:
    """Answer ``export``: the part of the model, but for settings and fingerprint."""
    site_state.expect(context, "export")
    read_request(lambda: ExportRequest.from_record(message.content))
    check_consent(site)
    reply = ExportReply(site.known_part.exported().as_text())
    site_state.end(context)
    return Message(reply.to_record(), reply_to=message)
