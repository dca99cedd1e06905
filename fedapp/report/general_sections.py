"""Sections that the report of every task has: sites, disclosure ledger, configuration, versions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedapp.report import figures
from fedapp.report.ledger import (
    Flow,
    format_bytes,
    format_ranges,
    site_traffic,
    volume_of,
)
from fedapp.report.page import Absent, Figure, Section, Table
from fedapp.report.summary_items import items_of
from fedapp.run_record import RunRecord


def sites_section(run: RunRecord, added: Mapping[str, Mapping[str, str]]) -> Section:
    """Return the table of sites: what they told of themselves, what the task adds, traffic."""
    traffic = site_traffic(run.ledger)
    told = {str(entry.get("site", "")): entry for entry in items_of(run, "sites")}
    names = list(dict.fromkeys([*told, *traffic]))
    if not names:
        return Section("Sites", paragraphs=["No site took part before the run ended."])
    keys = dict.fromkeys(key for entry in told.values() for key in entry if key != "site")
    rows = [
        [
            name,
            *(_cell(told.get(name, {}).get(key)) for key in keys),
            *(column.get(name, "") for column in added.values()),
            *(format_bytes(volume) for volume in traffic.get(name, (0, 0))),
        ]
        for name in names
    ]
    heads = [*(key.replace("-", " ") for key in keys), *added, "sent", "received"]
    columns = {"site": "short", **dict.fromkeys(heads, "number")}
    return Section("Sites", tables=[Table(columns, rows, caption="Sites that took part")])


def _cell(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\u202f")
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def disclosure_section(flows: Sequence[Flow], folder: Path) -> Section:
    """Return what was disclosed to whom, summed by step; draws the volumes into `folder`."""
    title, name = "Disclosure ledger", "bytes-by-step"
    messages = [flow for flow in flows if not flow.sealed]
    if not messages:
        figures.discard(folder, name)
        return Section(title, figures=[Absent("The ledger is empty: nothing was exchanged.")])
    steps = len({flow.step for flow in messages})
    svg = figures.draw(
        folder, name, lambda axes: figures.bytes_by_step(axes, messages), height=0.9 + 0.36 * steps
    )
    total = format_bytes(volume_of(flows))
    figure = Figure(
        name=name,
        svg=svg,
        alt=f"Bytes by step and direction; {total} in all.",
        caption=f"Volume of all messages of a step; {total} in all.",
    )
    words = (
        "Every message of the run, summed by step and direction. Masked values can be read as "
        "sums over sites only, ciphertexts by whoever has the key, what is in clear by the "
        "receiver of the message."
    )
    if len(messages) < len(flows):
        words += (
            " Rows from site to site are what one site sealed for another: it travels within the "
            "messages, so its volume is counted with theirs, and the server sees its size only."
        )
    return Section(title, paragraphs=[words], figures=[figure], tables=[_flow_table(flows)])


def _flow_table(flows: Sequence[Flow]) -> Table:
    columns = {
        "step": "short",
        "direction": "short",
        "reveals to the receiver": "text",
        "protection": "text",
        "exchanges": "number",
        "messages": "number",
        "volume": "number",
    }
    rows = [
        [
            flow.step,
            flow.direction,
            "; ".join(flow.reveals),
            flow.protection_words,
            format_ranges(flow.exchanges),
            f"{_cell(flow.messages)} parts" if flow.sealed else _cell(flow.messages),
            format_bytes(flow.bytes),
        ]
        for flow in flows
    ]
    return Table(columns, rows, caption="Messages by step and direction")


def configuration_section(run: RunRecord) -> Section:
    """Return the table of all settings, those that were changed marked, and the versions."""
    settings = run.config.get("config", {})
    defaults, meanings = run.config.get("defaults", {}), run.config.get("meanings", {})
    changed = [key in defaults and defaults[key] != value for key, value in settings.items()]
    rows = [
        [
            key,
            _setting(value),
            f"changed, default {_setting(defaults[key])}" if differs else "",
            str(meanings.get(key, "")),
        ]
        for (key, value), differs in zip(settings.items(), changed, strict=True)
    ]
    columns = {"key": "short", "value": "text", "": "short", "meaning": "text"}
    marked = frozenset(index for index, differs in enumerate(changed) if differs)
    caption = f"{sum(changed)} of {len(rows)} keys differ from their defaults"
    versions = dict(run.config.get("versions", {}))
    seed = run.config.get("seed")
    if "seed" in run.config:
        versions["seed"] = "none (operating system)" if seed is None else str(seed)
    about = [[name, str(version)] for name, version in versions.items()]
    return Section(
        "Configuration and versions",
        paragraphs=[] if rows else ["The run ended before its configuration was complete."],
        tables=[
            *([Table(columns, rows, caption=caption, marked=marked)] if rows else []),
            Table({"what": "short", "version": "short"}, about, caption="Versions and seed"),
        ],
    )


def _setting(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
