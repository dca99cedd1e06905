"""What the commands that run a task have in common: options, configuration, exit codes."""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from fedapp import run_config
from fedapp.flower_run import RUN_STATUS_LINE
from fedapp.run_config import Value
from fedapp.run_folder import RunFolder

EXIT_CODES = {"ok": 0, "failed": 1, "running": 1, "refused": 3, "not-estimable": 4}
USAGE = 2

_END = re.compile(re.escape(RUN_STATUS_LINE) + r"([a-z-]+)(?:: (.*))?")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `read_values`."""
    parser.add_argument(
        "task",
        nargs="?",
        choices=list(run_config.TASK_CONFIGS),
        help="default: the key task of --config or --set, or survival",
    )
    parser.add_argument("--clients", type=int, metavar="N", help="simulated sites")
    parser.add_argument("--data", metavar="FILE", help="CSV or Parquet file to deal to the sites")
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add ``--config`` and ``--set``."""
    parser.add_argument("--config", type=Path, metavar="TOML", help="file of settings")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        nargs="+",
        metavar="KEY=VALUE",
        help="settings, as survival.rounds=10",
    )


def read_values(options: argparse.Namespace) -> dict[str, Value]:
    """Merge file, --set and the short options, later ones winning, and check them."""
    values: dict[str, Value] = {}
    if resume := str(getattr(options, "resume", "")):
        from fedapp.resumption import settings_of

        values.update(settings_of(resume))
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
        values[key.strip()] = _typed(key.strip(), text.strip())
    task = options.task or values.get("task", run_config.GeneralConfig().task)
    if values.get("task", task) != task:
        raise ValueError(f"task = {values['task']!r}: {task} was asked for; name one of them")
    values["task"] = task
    data_key = f"{task}.data"
    if options.data is not None:
        values[data_key] = options.data
    if options.clients is not None:
        values["num-sites"] = options.clients
    run_config.read(values)
    remote = bool(getattr(options, "superlink", ""))
    _resolve_folders(values, remote=remote)
    if getattr(options, "resume", ""):  # paths are what they were in that run
        return values
    for key in ("vertical-xgboost.model", "vertical-xgboost.warm-start"):
        if model := str(values.get(key, "")):
            from fedapp.vertical_skeleton import model_of

            values[key] = model_of(model, remote=remote)
    if data := str(values.get(data_key, "")):
        named = "--data" if options.data is not None else data_key
        values[data_key] = _found_data(named, data, task=str(task), remote=remote)
    return values


def _resolve_folders(values: dict[str, Value], *, remote: bool) -> None:
    """Make paths of folders absolute where they are of this machine.

    The ServerApp's working directory is the SuperLink's, not the user's. A SuperLink that is named
    (`remote`) may be another machine: there, run folders are made where the server says, and what
    is not found here is a path of the server's.
    """
    run_dir, resume = str(values.get("run-dir", "")), str(values.get("resume", ""))
    if not remote:
        values["run-dir"] = str(_here("run-dir", run_dir or "runs"))
    if resume and not (remote and not _here("resume", resume).exists()):
        values["resume"] = str(_here("resume", resume))


def tell_end_elsewhere(folder: Path, lines: Sequence[str]) -> int:
    """Print how a run ended whose folder another machine has; return the exit code.

    Parameters
    ----------
    folder : Path
        As the ServerApp says, on its machine.
    lines : sequence of str
        What ``flwr run`` printed.
    """
    ends = [match for line in lines if (match := _END.search(line))]
    status, reason = (ends[-1][1], ends[-1][2]) if ends else ("", "")
    if status != "ok":
        said = f"{status}: {reason}" if status else "how the run ended has not been heard here"
        print(f"fedapp: {said}", file=sys.stderr)
    print(f"run folder: {folder} (of the server's machine)")
    return EXIT_CODES.get(status, EXIT_CODES["failed"])


def tell_end(folder: Path) -> int:
    """Print where a run folder is and, if it did not end well, why; return the exit code."""
    record = RunFolder.open(folder).read()
    status = str(record.status.get("status", ""))
    if status != "ok":
        reason = record.abandoned or record.status.get("reason", "")
        print(f"fedapp: {status}: {reason}", file=sys.stderr)
    print(f"run folder: {folder}")
    return EXIT_CODES.get(status, EXIT_CODES["failed"])


def _found_data(named: str, data: str, *, task: str, remote: bool) -> str:
    """Return the absolute path of a file or folder of this machine, or the name of bundled data."""
    from fedapp.site_data import BUNDLED

    bundled = sorted(name for name, one in BUNDLED.items() if one.task == task)
    if data in bundled:
        return data
    path = _here(named, data)
    # A SuperLink that is named may be another machine, with other files.
    if path.exists() or (remote and Path(data).is_absolute()):
        return str(path)
    raise ValueError(
        f"{named} = {data!r}: no such file, and no bundled data set of this task "
        f"({', '.join(bundled)})"
    )


def _here(named: str, path: str) -> Path:
    try:
        return Path(path).expanduser().resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{named} = {path!r}: {error}") from None


def _typed(name: str, text: str) -> Value:
    """Read a value as TOML does; what is no TOML value, and any value of a text key, is text."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    if isinstance(value, str):
        return value
    is_text = any(key.name == name and key.type == "str" for key in run_config.all_keys())
    return value if isinstance(value, bool | int | float) and not is_text else text


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
