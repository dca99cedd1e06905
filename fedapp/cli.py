"""``fedapp``: check, config, run, report, predict. A thin layer over ``flwr run`` and the modules.

Exit codes: 0 done; 1 failed; 2 the command line or the configuration is not usable; 3 refused by
the run (data, sites, code); 4 the result does not exist.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from fedapp import run_config
from fedapp.run_config import Value

EXIT_CODES = {"ok": 0, "failed": 1, "running": 1, "refused": 3, "not-estimable": 4}
USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parsed = _parser().parse_args(arguments)
    try:
        return int(parsed.command(parsed))
    except run_config.ConfigError as error:
        for fault in error.faults:
            print(f"fedapp: {fault}", file=sys.stderr)
        return USAGE
    except (OSError, ValueError) as error:
        print(f"fedapp: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("fedapp: stopped", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fedapp", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a task and say where its run folder is")
    _add_run_options(run)
    run.add_argument(
        "--in-process", action="store_true", help="simulate in this process, without flwr run"
    )
    run.add_argument(
        "--superlink", default="", metavar="NAME", help="SuperLink connection of `flwr run`"
    )
    run.set_defaults(command=_run)

    check = commands.add_parser(
        "check", help="check configuration, data and environment; start nothing"
    )
    _add_run_options(check)
    check.set_defaults(command=_check)

    config = commands.add_parser("config", help="list every key: type, range, default, meaning")
    config.add_argument("prefix", nargs="?", default="", help="only keys that begin so")
    config.add_argument("--json", action="store_true", help="as JSON")
    config.set_defaults(command=_config)

    report = commands.add_parser("report", help="make figures and report.html of a run again")
    report.add_argument("run", type=Path, metavar="RUN", help="run folder")
    report.set_defaults(command=_report)

    predict = commands.add_parser("predict", help="predict survival of new rows by a run's model")
    predict.add_argument("run", type=Path, metavar="RUN", help="run folder, or its model file")
    predict.add_argument("data", type=Path, metavar="DATA", help="CSV or Parquet file")
    predict.add_argument(
        "--times", default="", help="comma-separated times; default: quartiles of the time grid"
    )
    predict.add_argument("--out", type=Path, help="CSV file to write; default: the terminal")
    predict.set_defaults(command=_predict)
    return parser


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "task", nargs="?", default="survival", choices=list(run_config.TASK_CONFIGS)
    )
    parser.add_argument("--clients", type=int, metavar="N", help="simulated sites")
    parser.add_argument("--data", metavar="FILE", help="CSV or Parquet file to deal to the sites")
    parser.add_argument("--config", type=Path, metavar="TOML", help="file of settings")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        nargs="+",
        metavar="KEY=VALUE",
        help="settings, as survival.rounds=10",
    )


def _run(options: argparse.Namespace) -> int:
    values = _values(options)
    clients = options.clients or run_config.read(values).general.num_sites
    if options.in_process:
        from fedapp.simulation import simulate

        given = {key: val for key, val in values.items() if key not in ("task", "seed")}
        result = simulate(
            str(values["task"]),
            config={"report": True, **given},
            seed=int(values.get("seed", 0)),
            num_sites=clients,
        )
        folder = result.run_folder
    else:
        from fedapp import flower_run

        try:
            folder = flower_run.run_with_flower(
                values,
                num_supernodes=None if options.superlink else clients,
                superlink=options.superlink,
                echo=print,
            )
        except flower_run.FlowerRunError as error:
            print(f"fedapp: {error}", file=sys.stderr)
            return EXIT_CODES["failed"]
    status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    if status["status"] != "ok":
        print(f"fedapp: {status['status']}: {status.get('reason', '')}", file=sys.stderr)
    print(f"run folder: {folder}")
    return EXIT_CODES[status["status"]]


def _check(options: argparse.Namespace) -> int:
    from fedapp.check import check

    findings = check(_values(options), num_sites=options.clients)
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
    from fedapp.run_folder import RunFolderError

    try:
        print(write_report(options.run))
    except RunFolderError as error:
        raise ValueError(error) from None
    return 0


def _predict(options: argparse.Namespace) -> int:
    from fedapp.prediction import predict_file

    times = [float(time) for time in options.times.split(",") if time.strip()]
    table = predict_file(options.run, options.data, times=times)
    if options.out is None:
        print(table.to_csv(index=False), end="")
    else:
        table.to_csv(options.out, index=False)
        print(options.out.resolve())
    return 0


def _values(options: argparse.Namespace) -> dict[str, Value]:
    """Merge file, --set and the short options, later ones winning, and check them."""
    values: dict[str, Value] = {}
    if options.config is not None:
        with options.config.open("rb") as file:
            try:
                values.update(_flatten(tomllib.load(file)))
            except tomllib.TOMLDecodeError as error:
                raise ValueError(f"{options.config}: {error}") from None
    for setting in (part for group in options.set for part in group):
        key, separator, text = setting.partition("=")
        if not separator:
            raise ValueError(f"--set {setting}: must be KEY=VALUE")
        values[key.strip()] = _typed(text.strip())
    values["task"] = options.task
    if options.data is not None:
        values[f"{options.task}.data"] = options.data
    data = str(values.get(f"{options.task}.data", ""))
    if data and Path(data).expanduser().is_file():
        values[f"{options.task}.data"] = str(Path(data).expanduser().resolve())
    # The ServerApp's working directory is the SuperLink's, not the user's.
    values["run-dir"] = str(Path(str(values.get("run-dir", "runs"))).expanduser().resolve())
    if options.clients is not None:
        values["num-sites"] = options.clients
    run_config.read(values)
    return values


def _typed(text: str) -> Value:
    """Read a value as TOML does; what is no TOML value is text."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str) else text


def _flatten(table: dict[str, object], prefix: str = "") -> dict[str, Value]:
    flat: dict[str, Value] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        elif isinstance(value, bool | int | float | str):
            flat[f"{prefix}{key}"] = value
        else:
            raise ValueError(f"{prefix}{key}: must be true or false, a number or text")
    return flat


if __name__ == "__main__":
    sys.exit(main())
