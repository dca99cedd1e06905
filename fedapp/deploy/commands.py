"""``fedapp partition`` and ``fedapp deploy``: options, and what is printed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedapp.run_config import TASK_CONFIGS
from fedapp.run_options import EXIT_CODES, add_settings, read_values, tell_end
from fedapp.stopping import terminated_by_exception
from tasks.site.faults import SiteFault

if TYPE_CHECKING:
    from fedapp.site_data import Partition, Spread

# argparse prints `choices` where the words are wanted without importing pandas for every command.
_KINDS = ("iid", "random", "censoring-non-iid", "time-non-iid", "dirichlet", "natural")
_RUN_SECONDS = 3600.0


def add_deploy_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``partition`` and ``deploy`` to the commands of ``fedapp``."""
    _add_partition(commands)
    deploy = commands.add_parser("deploy", help="a federation on real hosts, and a rehearsal of it")
    steps = deploy.add_subparsers(required=True, metavar="STEP")
    _add_rehearse(steps)
    _add_site_keys(steps)
    _add_init(steps)
    _add_renew(steps)


def _add_partition(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "partition", help="deal a table to sites: one file each, as simulations deal it"
    )
    add = parser.add_argument
    add("data", metavar="DATA", help="CSV or Parquet file, or the name of a bundled data set")
    add("--sites", metavar="SITES", help="their number, or names: north,south,west")
    add("--out", type=Path, required=True, metavar="DIR", help="folder to write to")
    add("--vertical", action="store_true", help="deal columns and labels instead of rows")
    add("--seed", type=int, default=0, help="of the dealing, at least 0 (default 0)")
    add("--by", metavar="COLUMN", help="a site is what has one value here, in sorted order")
    add("--kind", choices=_KINDS, help="how rows are dealt (default iid)")
    add("--time", help="column of times, for the kinds that look at it")
    add("--event", help="column of events, for the kinds that look at it")
    add("--event-value", help="what stands for a seen event (default 1)")
    add("--alpha", type=float, help="of kind dirichlet: small makes sites different (default 1)")
    add("--id", help="column of row ids, which stay as they stand, as 007 (default id)")
    add("--label", help="vertical: column of labels (default label)")
    add("--columns", choices=("random", "in-order"), help="vertical: which site gets which columns")
    add("--weight", help="vertical: column of weights of rows, dealt with the labels")
    add("--labels", choices=("even", "skewed"), help="vertical: shares of labels (default even)")
    add("--labels-at", metavar="SITES", help="vertical: the sites that have labels (default all)")
    add("--format", choices=("csv", "parquet"), help="of the files (default: as DATA, else csv)")
    add("--force", action="store_true", help="write over files that are there")
    parser.set_defaults(command=_partition)


def _add_rehearse(steps: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = steps.add_parser(
        "rehearse", help="set up a federation on this machine, run a task in it, stop everything"
    )
    add = parser.add_argument
    add("--sites", default="3", metavar="SITES", help="their number (default 3), or names: a,b,c")
    add("--task", choices=list(TASK_CONFIGS), help="default: the key task, or survival")
    add("--data", metavar="FILE", help="table to deal to the sites; default: bundled data")
    add("--out", type=Path, required=True, metavar="DIR", help="new folder for everything")
    add("--port", type=int, default=0, help="of the SuperLink; default: a free one")
    add(
        "--time-limit",
        type=float,
        default=_RUN_SECONDS,
        metavar="SECONDS",
        help=f"stop a run that is not over by then (default {_RUN_SECONDS:g})",
    )
    add_settings(parser)
    parser.set_defaults(command=_rehearse, clients=None)


def _add_site_keys(steps: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = steps.add_parser(
        "site-keys", help="at a site: make its keys, and the file of public halves for the operator"
    )
    parser.add_argument("site", metavar="NAME", help="name of the site")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write to")
    parser.set_defaults(command=_site_keys)


def _add_init(steps: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = steps.add_parser(
        "init", help="write certificates, keys, start commands and guides for real hosts"
    )
    add = parser.add_argument
    add("--sites", required=True, metavar="SITES", help="names of the sites: north,south,west")
    add("--host", required=True, help="name or IP address of the server, as sites reach it")
    add("--port", type=int, default=8000, help="of the server (default 8000)")
    add("--alias", action="append", default=[], metavar="HOST", help="further name or address")
    add("--name", default="federation", help="of the connection (default federation)")
    add(
        "--task", default="", choices=list(TASK_CONFIGS), help="that sites prepare for; default all"
    )
    add("--days", type=int, default=397, help="validity of the server's certificate (default 397)")
    add("--public-keys", type=Path, metavar="DIR", help="with what `site-keys` made at the sites")
    add("--out", type=Path, required=True, metavar="DIR", help="new folder for everything")
    parser.set_defaults(command=_init)


def _add_renew(steps: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = steps.add_parser("renew", help="make the server a new certificate for the same names")
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="of `init`, or one with its folder server/")
    add("--authority", type=Path, metavar="DIR", help="with ca.key; default DIR/authority")
    add("--days", type=int, default=397, help="validity (default 397)")
    parser.set_defaults(command=_renew)


def _partition(options: argparse.Namespace) -> int:
    from fedapp.site_data.dealt_files import count_values, dealt_frames, write_frames

    if not options.sites and not options.by:
        raise ValueError("--sites: give their number or names (or a column that tells, --by)")
    partition, spread = _dealing(options)
    try:
        if not options.sites:
            options.sites = str(count_values(options.data, options.by))
        names = site_names(options.sites)
        frames = dealt_frames(
            options.data,
            names,
            seed=options.seed,
            partition=partition,
            spread=spread,
            text=_kept_text(options),
        )
    except SiteFault as fault:
        raise ValueError("; ".join(fault.reasons)) from None
    form = options.format or ("parquet" if options.data.lower().endswith(".parquet") else "csv")
    written = write_frames(frames, options.out, format=form, force=options.force)
    for path, frame in zip(written, frames.values(), strict=True):
        print(f"{path}: {len(frame)} rows, {len(frame.columns)} columns")
    return 0


def _kept_text(options: argparse.Namespace) -> list[str]:
    """Columns whose text stays: of ids, and of digits that begin with 0, as of postal codes.

    What the dealing looks at stays a number, since simulations deal by numbers.
    """
    from fedapp.site_data.dealt_files import columns_with_leading_zeros

    numbers = (options.by, options.time, options.event)
    found = columns_with_leading_zeros(options.data)
    return [options.id or "id", *(name for name in found if name not in numbers)]


def _dealing(options: argparse.Namespace) -> tuple[Partition, Spread | None]:
    """What the options say of the dealing; those that do not belong together are refused."""
    from fedapp.site_data import Partition, Spread

    rows = {"by": "column", "kind": "kind", "time": "time", "event": "event"}
    rows |= {"event_value": "event_value", "alpha": "alpha"}
    columns = {name: name for name in ("id", "label", "weight", "columns", "labels")}
    stray = [*rows] if options.vertical else ["label", "weight", "columns", "labels", "labels_at"]
    given = [f"--{name.replace('_', '-')}" for name in stray if getattr(options, name) is not None]
    if given:
        raise ValueError(
            f"{', '.join(given)}: {'not with' if options.vertical else 'only with'} --vertical"
        )

    def of(names: dict[str, str]) -> dict[str, object]:
        found = {names[name]: getattr(options, name) for name in names}
        return {field: value for field, value in found.items() if value is not None}

    if not options.vertical:
        if options.by and options.kind not in (None, "natural"):
            raise ValueError(f"--by {options.by}: not with --kind {options.kind}")
        natural = {"kind": "natural"} if options.by else {}
        return Partition(**of(rows) | natural), None  # type: ignore[arg-type]
    owners: tuple[int, ...] = ()
    if options.labels_at:
        names, wanted = site_names(options.sites), _listed(options.labels_at)
        if strangers := [name for name in wanted if name not in names]:
            raise ValueError(
                f"--labels-at: no site {', '.join(strangers)}; the sites are {', '.join(names)}"
            )
        if twins := sorted({name for name in wanted if wanted.count(name) > 1}):
            raise ValueError(f"--labels-at: {', '.join(twins)} more than once; must be once each")
        owners = tuple(names.index(name) for name in wanted)
    return Partition(), Spread(**of(columns), label_owners=owners)  # type: ignore[arg-type]


def _rehearse(options: argparse.Namespace) -> int:
    from fedapp.deploy.processes import ProcessFault
    from fedapp.deploy.rehearsal import rehearse
    from fedapp.flower_run import FlowerRunError

    if not options.time_limit > 0:
        raise ValueError(f"--time-limit {options.time_limit:g}: must be above 0")
    values = read_values(options)
    try:
        with terminated_by_exception():
            run = rehearse(
                values,
                sites=site_names(options.sites),
                folder=options.out,
                port=options.port,
                limit=options.time_limit,
            )
    except SiteFault as fault:
        raise ValueError("; ".join(fault.reasons)) from None
    except (ProcessFault, FlowerRunError) as fault:
        print(f"fedapp: {fault}", file=sys.stderr)
        return EXIT_CODES["failed"]
    return tell_end(run)


def _site_keys(options: argparse.Namespace) -> int:
    from fedapp.deploy.site_keys import SUFFIX, make_site_keys

    public = options.out / f"{options.site}{SUFFIX}"
    if public.exists():
        raise ValueError(f"{public}: is there already; keys are not written over")
    keys = make_site_keys(options.site, options.out / "keys")
    keys.write(public)
    print(f"{options.out / 'keys'}: private keys of {keys.site}; they never leave this site")
    print(f"{public}: for the operator")
    print(f"fingerprint, for the other sites (by telephone or on paper): {keys.fingerprint}")
    return 0


def _init(options: argparse.Namespace) -> int:
    from fedapp.deploy.federation_folder import read_public_keys, write_federation
    from fedapp.deploy.plan import Plan

    if options.sites.strip().isdecimal():
        raise ValueError(
            f"--sites {options.sites}: must be the names of the sites, not their number"
        )
    plan = Plan(
        sites=tuple(_listed(options.sites)),
        host=options.host,
        port=options.port,
        aliases=tuple(options.alias),
        name=options.name,
        task=options.task,
        days=options.days,
    )
    sent = read_public_keys(options.public_keys) if options.public_keys else None
    keys = write_federation(plan, options.out, public_keys=sent)
    for site in plan.sites:
        print(f"{site}: fingerprint {keys[site].fingerprint}")
    print(f"{options.out.resolve()}: read README.md there first")
    return 0


def _renew(options: argparse.Namespace) -> int:
    from fedapp.deploy.certificates import end_of
    from fedapp.deploy.federation_folder import renew_server_certificate

    path = renew_server_certificate(options.folder, days=options.days, authority=options.authority)
    print(f"{path}: valid until {end_of(path.read_bytes()):%Y-%m-%d}; start the SuperLink again")
    return 0


def site_names(text: str) -> list[str]:
    """Return the names in ``north,south``, or ``site-0``, ``site-1``, ... for a number of sites.

    Raises
    ------
    ValueError
        For no site at all.
    """
    if text.strip().isdecimal():
        count = int(text)
        if not 1 <= count <= 10_000:
            raise ValueError(f"--sites {text}: must be from 1 to 10000, or names of sites")
        return [f"site-{place}" for place in range(count)]
    return _listed(text)


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]
