"""Call the real ``flwr run`` and find the run folder that it left."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd

from fedapp.run_config import Value, toml_value
from fedapp.site_data import write_site_files

RUN_FOLDER_LINE = "run folder: "
"""What the ServerApp prints before the absolute path of its run folder."""

RUN_STATUS_LINE = "run status: "
"""What it prints at its end before the status and, if that is not ok, the reason: all that a
machine hears which does not have the folder."""

_STARTED = re.compile(r"Successfully started run (\d+)")
_STOP_SECONDS = 60.0
_END_SECONDS = 10.0
"""How long Flower's command has to end when it is asked to."""


class FlowerRunError(RuntimeError):
    """``flwr run`` could not be called, or ended without leaving a run folder."""


def app_folder() -> Path:
    """Return the folder that ``flwr run`` bundles: that of the packages, or the working one.

    Raises
    ------
    FlowerRunError
        If neither is this app.
    """
    candidates = [Path(__file__).resolve().parent.parent, Path.cwd()]
    for folder in candidates:
        project = folder / "pyproject.toml"
        if project.is_file() and _is_this_app(project):
            return folder
    raise FlowerRunError(
        "no app to bundle: call this in the folder of the app (the one with its pyproject.toml), "
        "or run in this process (--in-process, backend='in-process')"
    )


def run_with_flower(
    values: Mapping[str, Value],
    *,
    num_supernodes: int | None,
    superlink: str = "",
    echo: Callable[[str], None] = lambda line: None,
    environment: Mapping[str, str] | None = None,
    limit: float = math.inf,
) -> Path:
    """Run the app by ``flwr run`` and return its run folder.

    Parameters
    ----------
    values : mapping
        Run configuration, flat.
    num_supernodes : int or None
        Simulated SuperNodes; None: as the federation is.
    superlink : str
        Name of a SuperLink connection of the Flower configuration; ``""``: the default one.
    echo : callable
        Gets every line of output.
    environment : mapping, optional
        Environment of Flower's commands; default: this process's.
    limit : float
        Seconds after which the run is stopped.

    Raises
    ------
    FlowerRunError
        If the run left no folder, or was not over within `limit`; the text has the last lines of
        output.
    """
    environment = _environment() if environment is None else environment
    with tempfile.TemporaryDirectory(prefix="fedapp-") as scratch:
        toml = Path(scratch) / "run-config.toml"
        lines_of_toml = (f"{key} = {toml_value(val)}\n" for key, val in values.items())
        toml.write_text("".join(lines_of_toml), encoding="utf-8")
        command = [_flwr(), "run", str(app_folder()), *([superlink] if superlink else [])]
        command += ["--stream", "--run-config", str(toml)]
        if num_supernodes is not None:
            command += ["--federation-config", f"num-supernodes={num_supernodes}"]
        lines: list[str] = []
        try:
            in_time = _stream(command, echo, into=lines, environment=environment, limit=limit)
        except BaseException:  # Ctrl-C, or nobody reads what `echo` says any more
            # Flower's command only ends its own listening; the run would go on unseen.
            done = _stop_run(lines, superlink, environment)
            with suppress(OSError):
                echo(done)
            raise
    if not in_time:
        stopped = _stop_run(lines, superlink, environment)
        raise FlowerRunError(f"the run was not over after {limit:g} seconds; {stopped}")
    for line in lines:
        if match := re.search(re.escape(RUN_FOLDER_LINE) + r"(/.*|[A-Za-z]:\\.*)$", line):
            return Path(match[1].strip())
    tail = "\n".join(line for line in lines[-15:] if line.strip())
    raise FlowerRunError(f"`flwr run` left no run folder; its last lines:\n{tail}")


def simulate_with_ray(
    values: Mapping[str, Value],
    *,
    sites: Sequence[pd.DataFrame] | None,
    num_sites: int,
) -> Path:
    """Run a simulation by ``flwr run``: frames go to files, one a site.

    Returns
    -------
    Path
        The run folder.
    """
    with tempfile.TemporaryDirectory(prefix="fedapp-sites-") as folder:
        changed = dict(values)
        if sites is not None:
            write_site_files(sites, Path(folder))
            changed[f"{values['task']}.data"] = folder
            num_sites = len(sites)
        changed["num-sites"] = num_sites
        for key in filter(changed.get, ("run-dir", "resume")):  # of this working directory
            changed[key] = str(Path(str(changed[key])).expanduser().resolve())
        return run_with_flower(changed, num_supernodes=num_sites)


def _stream(
    command: list[str],
    echo: Callable[[str], None],
    *,
    into: list[str],
    environment: Mapping[str, str],
    limit: float,
) -> bool:
    """Run a command and pass its lines on; return whether it ended by itself."""
    is_late = threading.Event()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env=dict(environment),
    ) as process:
        assert process.stdout is not None

        def end() -> None:
            is_late.set()
            _end(process)

        clock = threading.Timer(min(limit, threading.TIMEOUT_MAX), end)
        clock.daemon = True
        clock.start()
        try:
            for line in process.stdout:
                into.append(line.rstrip("\n"))
                echo(into[-1])
        except BaseException:
            _end(process)
            raise
        finally:
            clock.cancel()
    return not is_late.is_set()


def _end(process: subprocess.Popen[str]) -> None:
    """End Flower's command, also one that does not want to."""
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _stop_run(lines: Sequence[str], superlink: str, environment: Mapping[str, str]) -> str:
    """Stop the run that these lines of output are of; return what was done, in words."""
    found = [match[1] for line in lines if (match := _STARTED.search(line))]
    if not found:
        return "no run had been started yet; `flwr list` shows what runs"
    words = ["stop", found[-1], *([superlink] if superlink else [])]
    by_hand = f"stop it by `flwr {' '.join(words)}`"
    try:
        done = subprocess.run(
            [_flwr(), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env=dict(environment),
            timeout=_STOP_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, KeyboardInterrupt) as error:
        return f"run {found[-1]} may go on ({type(error).__name__}); {by_hand}"
    if done.returncode == 0:
        return f"run {found[-1]} has been stopped (flwr {' '.join(words)})"
    why = " ".join(done.stdout.split())[-300:]
    return f"run {found[-1]} may go on, `flwr stop` said: {why}; {by_hand}"


def _environment() -> dict[str, str]:
    # flwr starts `flower-superlink` by name: it must be found where this Python's scripts are,
    # activated or not. Streamed logs come line by line only if Python does not buffer them.
    scripts = str(Path(sys.executable).parent)
    search = os.pathsep.join([scripts, os.environ.get("PATH", "")])
    return {**os.environ, "PATH": search, "PYTHONUNBUFFERED": "1"}


def _flwr() -> str:
    found = shutil.which("flwr", path=str(Path(sys.executable).parent)) or shutil.which("flwr")
    if found is None:
        raise FlowerRunError("the command `flwr` is not installed: pip install 'flwr[simulation]'")
    return found


def _is_this_app(project: Path) -> bool:
    try:
        table = tomllib.loads(project.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return False
    components = table.get("tool", {}).get("flwr", {}).get("app", {}).get("components", {})
    return bool(components.get("serverapp") == "fedapp.server_app:app")
