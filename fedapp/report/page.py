"""The page of a report: its parts, and the template that sets them as one HTML file.

Nothing on the page comes from elsewhere: style and figures are in the file, scripts are none, and
the content security policy in its head forbids both. The template is a string because a Flower
bundle carries no HTML files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

_LONG = 60  # rows


@dataclass(frozen=True)
class KeyNumber:
    """A number at the head of the page, with a line of detail under it."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Notice:
    """A line that readers must not miss; ``kind`` is ``"note"``, ``"warning"`` or ``"failure"``."""

    kind: str
    text: str


@dataclass(frozen=True)
class Figure:
    """A figure in the text; ``svg`` has been made by `fedapp.report.figures.draw`."""

    name: str
    svg: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Absent:
    """A figure that cannot be made, and why."""

    reason: str


@dataclass(frozen=True)
class Table:
    """A table of strings.

    ``columns`` maps a column's head to its kind: ``"text"``, ``"short"`` (text that is never
    broken over lines) or ``"number"`` (set flush right).
    ``marked`` holds the indices of rows to bring out; ``caption`` names the table.
    """

    columns: Mapping[str, str]
    rows: Sequence[Sequence[str]]
    caption: str
    marked: frozenset[int] = frozenset()

    @property
    def form(self) -> str:
        """How it adapts: text is stacked on a narrow screen, a long table scrolls on any screen."""
        stacked = "stacked" if "text" in self.columns.values() else ""
        long = "long" if len(self.rows) > _LONG else ""
        return f"{stacked} {long}".strip()


@dataclass(frozen=True)
class Section:
    """A titled part of the page: paragraphs, then figures, then tables."""

    title: str
    paragraphs: Sequence[str] = ()
    figures: Sequence[Figure | Absent] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Page:
    """All that the template sets."""

    title: str
    name: str
    facts: Sequence[str]
    status: str
    status_kind: str
    notices: Sequence[Notice] = ()
    key_numbers: Sequence[KeyNumber] = ()
    sections: Sequence[Section] = field(default_factory=list)


def render(page: Page) -> str:
    """Return the page as HTML; every string is escaped, but for the SVG of figures."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.tests["figure"] = lambda part: isinstance(part, Figure)
    return environment.from_string(_TEMPLATE).render(page=page, style=Markup(_STYLE), svg=Markup)


_TEMPLATE = """\
{% macro table_of(table) %}
<div class="table {{ table.form }}" tabindex="0" role="region"
 aria-label="{{ table.caption }}">
<table>
<caption>{{ table.caption }}</caption>
<thead><tr>
{% for head, kind in table.columns.items() %}
<th scope="col" class="{{ kind }}">{{ head }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in table.rows %}
<tr{% if loop.index0 in table.marked %} class="marked"{% endif %}>
{% for head, kind in table.columns.items() %}
<td class="{{ kind }}" data-head="{{ head }}">{{ row[loop.index0] }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
{% endmacro %}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{{ page.title }} – {{ page.name }}</title>
<style>{{ style }}</style>
</head>
<body>
<main>
<header>
<p class="status {{ page.status_kind }}">{{ page.status }}</p>
<h1>{{ page.title }}</h1>
<p class="facts">
{% for fact in page.facts %}<span>{{ fact }}</span>
{% endfor %}
</p>
</header>
{% for notice in page.notices %}
<p class="notice {{ notice.kind }}">{{ notice.text }}</p>
{% endfor %}
{% if page.key_numbers %}
<dl class="key-numbers">
{% for number in page.key_numbers %}
<div><dt>{{ number.label }}</dt><dd>{{ number.value }}</dd>
{% if number.detail %}
<dd class="detail">{{ number.detail }}</dd>
{% endif %}
</div>
{% endfor %}
</dl>
{% endif %}
{% for section in page.sections %}
<section>
<h2>{{ section.title }}</h2>
{% for paragraph in section.paragraphs %}
<p>{{ paragraph }}</p>
{% endfor %}
{% if section.figures %}
<div class="figures">
{% for part in section.figures %}
{% if part is figure %}
<figure role="img" aria-label="{{ part.alt }}">
{{ svg(part.svg) }}
<figcaption>{{ part.caption }}
<span class="file">figures/{{ part.name }}.svg, .png</span></figcaption>
</figure>
{% else %}
<p class="absent">{{ part.reason }}</p>
{% endif %}
{% endfor %}
</div>
{% endif %}
{% for table in section.tables %}
{{ table_of(table) }}
{% endfor %}
</section>
{% endfor %}
</main>
</body>
</html>
"""

_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --panel: #f5f6f8; --ink: #1f2328; --muted: #59636e; --rule: #d8dde3;
  --blue: #0072b2; --sky: #56b4e9; --green: #009e73; --orange: #e69f00; --red: #d55e00;
  --purple: #aa4499; --good: #116644; --warning: #8a5300; --failure: #b3261e;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --panel: #1c2025; --ink: #e4e7eb; --muted: #9aa4af; --rule: #343b43;
    --blue: #6fbcf0; --sky: #3d7fa9; --green: #3cc79d; --orange: #f0b840; --red: #f08a4b;
    --purple: #d68ac8; --good: #5fcf9f; --warning: #f0b840; --failure: #ff8f85;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%; overflow-wrap: anywhere;
}
main { max-width: 70rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; font-weight: 650; margin: 0 0 .35rem; }
h2 { font-size: 1.2rem; line-height: 1.3; font-weight: 650; margin: 0 0 .6rem; }
p { margin: 0 0 .75rem; max-width: 46rem; }
section { margin-top: 2.75rem; padding-top: 1.5rem; border-top: 1px solid var(--rule); }
header { overflow: hidden; }
.facts { color: var(--muted); font-size: .9rem; margin-bottom: 1.5rem; max-width: none; }
.facts span:not(:last-child)::after { content: "·"; margin: 0 .5em; }
.status {
  float: right; margin: .45rem 0 .5rem 1rem; padding: .1rem .7rem; border-radius: 1rem;
  border: 1px solid currentColor; font-size: .85rem; font-weight: 600; color: var(--muted);
}
.status.good { color: var(--good); }
.status.warning { color: var(--warning); }
.status.failure { color: var(--failure); }
.notice {
  padding: .55rem .9rem; border-left: 3px solid var(--muted); background: var(--panel);
  margin: 0 0 .5rem; max-width: none;
}
.notice.warning { border-color: var(--warning); }
.notice.failure { border-color: var(--failure); }
.key-numbers {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(7rem, 1fr));
  gap: 1.25rem 1.4rem; margin: 1.75rem 0 0;
}
.key-numbers div:first-child { grid-column: span 2; }
.key-numbers dt { color: var(--muted); font-size: .85rem; }
.key-numbers dd { margin: 0; font-size: 1.3rem; line-height: 1.35; font-weight: 600; }
.key-numbers div:first-child dd:not(.detail) { font-size: 2.2rem; line-height: 1.15; }
.key-numbers dd.detail { font-size: .85rem; font-weight: 400; color: var(--muted); }
.figures {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr));
  gap: 1.75rem 2.5rem; margin: 1rem 0 1.25rem; align-items: start;
}
figure { margin: 0; max-width: 33rem; min-width: 0; break-inside: avoid; }
figure svg { display: block; width: 100%; height: auto; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figure svg text { font-family: inherit; }
figcaption { font-size: .9rem; line-height: 1.45; color: var(--muted); margin-top: .5rem; }
.file { font-size: .8rem; white-space: nowrap; opacity: .85; }
.absent { color: var(--muted); border: 1px dashed var(--rule); padding: .8rem 1rem; margin: 0; }
.table { overflow-x: auto; margin: 1rem 0 1.5rem; }
table { border-collapse: collapse; font-size: .9rem; line-height: 1.4; overflow-wrap: normal; }
caption { text-align: left; color: var(--muted); font-size: .85rem; padding-bottom: .4rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem 1.25rem .35rem 0; }
th {
  font-weight: 600; vertical-align: bottom; background: var(--paper);
  border-bottom: 1px solid var(--ink);
}
td { border-bottom: 1px solid var(--rule); max-width: 36rem; }
td:last-child, th:last-child { padding-right: 0; }
.number, .short { white-space: nowrap; }
.number { text-align: right; }
th.number { white-space: normal; max-width: 7.5rem; }
td.text { min-width: 11rem; overflow-wrap: anywhere; }
tr.marked td { font-weight: 600; }
@media (max-width: 40rem) {
  main { padding: 1.25rem 1rem 3rem; }
  h1 { font-size: 1.5rem; }
  .status { float: none; display: inline-block; margin: 0 0 .6rem; }
  .key-numbers { grid-template-columns: 1fr 1fr; gap: 1rem; }
  .stacked table, .stacked tbody, .stacked caption { display: block; }
  .stacked thead { display: none; }
  .stacked tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--rule); }
  .stacked td, .stacked td:last-child {
    display: flex; gap: .75rem; padding: .1rem 0; border: 0; text-align: left; max-width: none;
    white-space: normal;
  }
  .stacked td:first-child { font-weight: 600; }
  .stacked td:empty { display: none; }
  .stacked td::before { content: attr(data-head); color: var(--muted); flex: 0 0 6.5rem; }
}
@media screen {
  .table.long {
    max-height: 36rem; width: fit-content; max-width: 100%; overflow-y: auto;
    border: 1px solid var(--rule); padding: 0 .75rem;
  }
  .table.long caption { padding-top: .5rem; }
  .table.long th { position: sticky; top: 0; }
}
@media print {
  @page { margin: 16mm 14mm; }
  :root { font-size: 9.5pt; }
  body { font-size: 1rem; }
  main { max-width: none; padding: 0; }
  section { margin-top: 1.75rem; padding-top: 1rem; }
  .table { overflow: visible; }
  th, td { padding-right: .8rem; }
  td.text { min-width: 7rem; }
  .key-numbers { grid-template-columns: repeat(8, 1fr); gap: .8rem; }
  .key-numbers dd { font-size: 1.15rem; }
  h2, caption, thead { break-after: avoid; }
  tr, .notice, .key-numbers div { break-inside: avoid; }
  .figures { grid-template-columns: 1fr 1fr; gap: 1rem 1.5rem; }
}
"""
