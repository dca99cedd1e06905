"""Which columns of a site's file a run sees, and under which names: ``columns`` of the node config.

What is not named there, no run can read or name, so that a list of "every other column" is one of
what the site has let go, and the file's own names stay at the site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from logging import ERROR

import pandas as pd

from tasks.site.faults import SiteFault

COLUMNS = "columns"

_NAMED = f'node config "{COLUMNS}"'


def parse_columns(text: str) -> dict[str, str]:
    """Read ``"relapse=y; age=Alter; sex"``; a name alone is that of both the run and the file.

    Returns
    -------
    dict of str to str
        The file's name by the run's; empty for an empty text.

    Raises
    ------
    SiteFault
        ``bad-node-config`` with every fault. They travel, so they have the run's names and
        positions, and no name of a column of the file.
    """
    pairs = []
    faults = []
    for number, part in enumerate((p for p in text.split(";") if p.strip()), start=1):
        run, equals, own = (word.strip() for word in part.partition("="))
        if run and (own or not equals):
            pairs.append((run, own or run))
        else:
            faults.append(
                f'{_NAMED}: part {number} must be "name in the run = name in the file", or one '
                'name for both; parts are parted by ";"'
            )
    faults += [
        f'{_NAMED}: "{run}" is there {count} times; must be once'
        for run, count in Counter(run for run, _ in pairs).items()
        if count > 1
    ]
    by_own: dict[str, set[str]] = {}
    for run, own in pairs:
        by_own.setdefault(own, set()).add(f'"{run}"')
    faults += [
        f"{_NAMED}: {' and '.join(sorted(runs))} are one column of the file; must be one each"
        for runs in by_own.values()
        if len(runs) > 1
    ]
    if faults:
        raise SiteFault("bad-node-config", *faults)
    return dict(pairs)


def visible(frame: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """Return what a run may see of a table, under the run's names; all of it without `columns`.

    Raises
    ------
    SiteFault
        ``bad-columns`` if a column is missing in the file. The file's own name of it goes to the
        node's log alone.
    """
    if not columns:
        return frame
    missing = {run: own for run, own in columns.items() if own not in frame.columns}
    for run, own in missing.items():
        from flwr.supercore import log  # takes time, and is not needed where all is well

        log(ERROR, '%s: "%s" is "%s" of the file, which has no such column', _NAMED, run, own)
    if missing:
        raise SiteFault(
            "bad-columns",
            *(f'{_NAMED}: the file has no column for "{run}"' for run in missing),
        )
    # In the file's order, as without the key.
    names = {own: run for run, own in columns.items()}
    return frame[[own for own in frame.columns if own in names]].rename(columns=names)
