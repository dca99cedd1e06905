"""``fedapp``: check, run, report, predict, export, audit; deal data, deploy, read a site's ledger.

A thin layer over ``flwr run`` and the modules.

Exit codes: 0 done; 1 failed; 2 the command line or the configuration is not usable; 3 refused by
the run (data, sites, code); 4 the result does not exist; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fedapp import run_config
from fedapp.deploy.commands import add_deploy_commands
from fedapp.entry import STOPPED
from fedapp.run_config import Value
from fedapp.run_folder import RunFolder, base_fault
from fedapp.run_options import (
    EXIT_CODES,
    USAGE,
    add_run_options,
    read_values,
    tell_end,
    tell_end_elsewhere,
)
from fedapp.run_record import RunFolderError
from fedapp.stopping import terminated_by_exception
from tasks.site.faults import SiteFault

NOBODY_READS = 141
"""Exit code where what reads the output has gone: as of a shell, 128 and SIGPIPE's number."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        parsed = _parser().parse_args(arguments)
        code = int(parsed.command(parsed))
        print(end="", flush=True)  # unlike `sys.stdout.flush`, also where standard output is closed
        return code
    except BrokenPipeError:
        # Who reads, as `| head`, has seen enough. What is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
    except run_config.ConfigError as error:
        for fault in error.faults:
            print(f"fedapp: {fault}", file=sys.stderr)
        return USAGE
    except (OSError, ValueError, RunFolderError) as error:
        print(f"fedapp: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("fedapp: stopped", file=sys.stderr)
        return STOPPED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fedapp", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a task and say where its run folder is")
    add_run_options(run)
    run.add_argument(
        "--in-process", action="store_true", help="simulate in this process, without flwr run"
    )
    run.add_argument(
        "--superlink", default="", metavar="NAME", help="SuperLink connection of `flwr run`"
    )
    run.add_argument(
        "--resume",
        default="",
        metavar="RUN",
        help="folder of an interrupted run: go on from its last checkpoint, with its configuration",
    )
    run.set_defaults(command=_run)

    check = commands.add_parser(
        "check", help="check configuration, data and environment; start nothing"
    )
    add_run_options(check)
    check.set_defaults(command=_check)

    config = commands.add_parser("config", help="list every key: type, range, default, meaning")
    config.add_argument("prefix", nargs="?", default="", help="only keys that begin so")
    config.add_argument("--json", action="store_true", help="as JSON")
    config.set_defaults(command=_config)

    report = commands.add_parser("report", help="make figures and report.html of a run again")
    report.add_argument("run", type=Path, metavar="RUN", help="run folder")
    report.set_defaults(command=_report)

    export = commands.add_parser(
        "export-model", help="write the whole of a vertical model for XGBoost, if all consent"
    )
    export.add_argument("run", type=Path, metavar="RUN", help="run folder")
    export.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON to write")
    export.add_argument(
        "--importance", type=Path, metavar="FILE", help="JSON of gain, cover and weight to write"
    )
    export.set_defaults(command=_export_model)

    predict = commands.add_parser("predict", help="predict survival of new rows by a run's model")
    predict.add_argument("run", type=Path, metavar="RUN", help="run folder, or its model file")
    predict.add_argument("data", type=Path, metavar="DATA", help="CSV or Parquet file")
    predict.add_argument(
        "--times", default="", help="comma-separated times; default: quartiles of the time grid"
    )
    predict.add_argument("--out", type=Path, help="CSV file to write; default: the terminal")
    predict.set_defaults(command=_predict)

    identity = commands.add_parser(
        "identity", help="write a lasting key for a site, and print the fingerprint to pin"
    )
    identity.add_argument("file", type=Path, metavar="FILE", help="to write; must not exist")
    identity.set_defaults(command=_identity)

    audit = commands.add_parser(
        "audit", help="simulated vertical run: how well parties guess labels of others"
    )
    audit.add_argument("run", type=Path, metavar="RUN", help="run folder")
    audit.add_argument("--json", type=Path, help="write the figures to this file")
    audit.set_defaults(command=_audit)

    ledger = commands.add_parser(
        "site-ledger", help="what a site has spent of its epsilon over all runs, and what is left"
    )
    ledger.add_argument("folder", type=Path, metavar="STATE_DIR", help="state-dir of the site")
    ledger.add_argument("--max-epsilon", type=float, help="default: that of the latest run")
    ledger.add_argument("--max-delta", type=float, help="default: that of the latest run")
    ledger.add_argument("--json", action="store_true", help="as JSON")
    ledger.set_defaults(command=_site_ledger)
    add_deploy_commands(commands)
    return parser


def _run(options: argparse.Namespace) -> int:
    values = read_values(options)
    # A SuperLink that is named may be another machine, with other folders.
    if not options.superlink and (fault := base_fault(Path(str(values["run-dir"])))):
        raise ValueError(f"run-dir = {values['run-dir']!r}: {fault}")
    config = run_config.read(values)
    if config.general.resume and not options.superlink:
        from fedapp.resumption import refuse_to_resume

        refuse_to_resume(config.flat())
    clients = options.clients or config.general.num_sites
    lines: list[str] = []
    with terminated_by_exception():
        folder = _run_folder(options, values, clients=clients, lines=lines)
    if folder is None:
        return EXIT_CODES["failed"]
    if options.superlink and not os.path.isdir(folder):  # where `is_dir` may raise
        return tell_end_elsewhere(folder, lines)
    return tell_end(folder)


def _run_folder(
    options: argparse.Namespace, values: dict[str, Value], *, clients: int, lines: list[str]
) -> Path | None:
    """Run and return the run folder; None if there is none, when it has been said why.

    What ``flwr run`` prints is added to `lines`.
    """
    if options.in_process:
        from fedapp.simulation import simulate

        given = {key: val for key, val in values.items() if key not in ("task", "seed")}
        result = simulate(
            str(values["task"]),
            config={"report": True, **given},
            seed=int(values.get("seed", 0)),
            num_sites=clients,
        )
        return result.run_folder
    from fedapp import flower_run

    def echo(line: str) -> None:
        lines.append(line)
        print(line)

    try:
        return flower_run.run_with_flower(
            values,
            num_supernodes=None if options.superlink else clients,
            superlink=options.superlink,
            echo=echo,
        )
    except flower_run.FlowerRunError as error:
        print(f"fedapp: {error}", file=sys.stderr)
        return None


def _check(options: argparse.Namespace) -> int:
    from fedapp.check import check

    findings = check(read_values(options), num_sites=options.clients)
    for finding in findings:
        print(finding)
    return 0 if all(finding.ok for finding in findings) else USAGE


def _config(options: argparse.Namespace) -> int:
    keys = [key for key in run_config.all_keys() if key.name.startswith(options.prefix)]
    if not keys:
        print(f"fedapp: no key begins with {options.prefix!r}", file=sys.stderr)
        return USAGE
    if options.json:
        print(json.dumps([vars(key) for key in keys], indent=2, ensure_ascii=False))
        return 0
    for key in keys:
        print(f"{key.name} = {run_config.toml_value(key.default)}")
        print(f"    {key.meaning}")
        print(f"    {key.type}: {key.allowed}")
    return 0


def _report(options: argparse.Namespace) -> int:
    from fedapp.report import write_report

    print(write_report(options.run))
    if abandoned := RunFolder.open(options.run).read().abandoned:
        print(f"fedapp: {abandoned}", file=sys.stderr)
    return 0


def _predict(options: argparse.Namespace) -> int:
    from fedapp.prediction import predict_file

    table = predict_file(options.run, options.data, times=_times(options.times))
    if options.out is None:
        print(table.to_csv(index=False, float_format="%.6g"), end="")
    else:
        table.to_csv(options.out, index=False)
        print(options.out.resolve())
    return 0


def _identity(options: argparse.Namespace) -> int:
    from tasks.secure.identity import create_identity

    try:
        print(create_identity(options.file))
    except SiteFault as fault:
        raise ValueError(str(fault)) from None
    return 0


def _export_model(options: argparse.Namespace) -> int:
    from fedapp.vertical_export import exported_model

    try:
        model, importance = exported_model(options.run)
    except ValueError as error:
        print(f"fedapp: {error}", file=sys.stderr)
        return EXIT_CODES["refused"]
    wanted = [(options.out, model)]
    wanted += [(options.importance, importance)] if options.importance else []
    for path, document in wanted:
        path.write_text(json.dumps(document) + "\n", encoding="utf-8")
        print(path.resolve())
    return 0


def _audit(options: argparse.Namespace) -> int:
    from fedapp.vertical_audit import audit_run, table_of

    document = audit_run(options.run)
    print(table_of(document))
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0


def _site_ledger(options: argparse.Namespace) -> int:
    from fedapp.site_ledger import has_ledger, ledger_document, table_of

    if not options.json and options.folder.is_dir() and not has_ledger(options.folder):
        print(f"{options.folder}: no ledger here: no run has begun under a max-epsilon")
        return 0
    try:
        document = ledger_document(
            options.folder, max_epsilon=options.max_epsilon, max_delta=options.max_delta
        )
    except SiteFault as fault:
        print(f"fedapp: {fault}", file=sys.stderr)
        return EXIT_CODES["failed"]
    print(json.dumps(document, indent=2) if options.json else table_of(document))
    return 0


def _times(text: str) -> list[float]:
    try:
        times = [float(time) for time in text.split(",") if time.strip()]
    except ValueError:
        times = [math.nan]
    if not all(map(math.isfinite, times)):
        raise ValueError(f"--times {text}: must be numbers separated by commas, as 365,730")
    return times


if __name__ == "__main__":
    sys.exit(main())
