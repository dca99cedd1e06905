"""What a site remembers of a run between two messages: keys, guard, roster, and its release.

Keys are drawn at the first introduction and never anew in a run, and the roster of the release is
that of every later step, so that no server can have a step answered for two of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from logging import INFO
from pathlib import Path
from typing import cast

import numpy as np
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.supercore import log
from numpy.typing import NDArray

from tasks.secure.identity import read_identity
from tasks.secure.keys import SiteKeys
from tasks.secure.roster import Roster
from tasks.secure.secure_sums import MaskedVector, mask
from tasks.secure.split_reals import word_bound
from tasks.secure.sum_guard import SumGuard
from tasks.site.faults import SiteFault
from tasks.site.messages import Facts
from tasks.site.name_lists import some_names

_KEYS = "roc-glm-keys"
_ROSTER = "roc-glm-roster"
_MODEL = "roc-glm-model"
_FACTS = "roc-glm-facts"
_RELEASE = "roc-glm-release/"
_NOISE = "roc-glm-noise"

_CANNOT_WRITE = (OSError, ValueError, RuntimeError)
"""Of a path that is no folder, holds a null character, or starts with an unknown user's home."""

_LOST = "the node has lost its state of this run (was its SuperNode restarted?): begin a new run"


def run_name(run_id: int) -> str:
    """Name of a run, to which keys and masks are bound."""
    return f"run-{run_id}"


def own_keys(context: Context, name: str) -> SiteKeys:
    """Keys of the site in this run; drawn and stored at the first call.

    ``identity-path`` of the node configuration is a lasting key to sign with.
    """
    record = context.state.config_records.get(_KEYS)
    if record is not None:
        return SiteKeys.from_bytes(cast(bytes, record["keys"]))
    path = context.node_config.get("identity-path")
    identity = read_identity(Path(str(path)).expanduser()) if path else None
    keys = SiteKeys.generate(site=name, run=run_name(context.run_id), identity=identity)
    context.state[_KEYS] = ConfigRecord({"keys": keys.to_bytes(), "guard": SumGuard().to_bytes()})
    return keys


def accept_roster(context: Context, name: str, relayed: bytes) -> Roster:
    """Check the roster that the server relays; `masked` keeps it once it was answered.

    ``pinned-sites`` of the node configuration (``"north=ABCD-..., south=..."``) gives fingerprints
    of other sites; with ``require-pinned = true`` no other site is accepted.

    Raises
    ------
    SiteFault
        What is wrong with it.
    """
    roster = Roster.from_bytes(
        relayed,
        run=run_name(context.run_id),
        own=_stored_keys(context, name),
        pinned=_pins(context.node_config),
        require_pinned=context.node_config.get("require-pinned") is True,
    )
    if _ROSTER not in context.state:
        trusted = some_names(roster.first_use)
        words = f"; trusted on first use: {trusted}" if trusted else ""
        log(INFO, "sums are masked between the sites of roster %s%s", roster.fingerprint, words)
    return roster


def known_roster(context: Context, name: str) -> Roster:
    """The roster that the release was answered for.

    Raises
    ------
    SiteFault
        ``"lost-state"`` if there is none.
    """
    record = context.state.config_records.get(_ROSTER)
    if record is None:
        raise SiteFault("lost-state", _LOST)
    return accept_roster(context, name, cast(bytes, record["roster"]))


def refuse_another_roster(context: Context, name: str, roster: Roster) -> None:
    """Refuse a roster that is not that of the release.

    Raises
    ------
    SiteFault
        ``"second-roster"``.
    """
    if roster.digest != known_roster(context, name).digest:
        raise SiteFault(
            "second-roster",
            "another roster than the release was answered for, after rounds under that one",
        )


def masked(
    context: Context,
    name: str,
    roster: Roster,
    values: NDArray[np.int64],
    *,
    step: str,
    may_repeat: bool = False,
) -> MaskedVector:
    """Mask an answer, and store the guard that remembers it and the roster it was given for.

    Parameters
    ----------
    context : Context
        Its state is changed last.
    name : str
        The site's name.
    roster : Roster
        Sites of the sum.
    values : (n,) int64
        What is summed.
    step : str
        Name of the step.
    may_repeat : bool
        Whether the step may be answered anew for part of the roster.
    """
    keys = _stored_keys(context, name)
    record = context.state.config_records[_KEYS]
    guard = SumGuard.from_bytes(cast(bytes, record["guard"]))
    answer = mask(
        values,
        keys=keys,
        roster=roster,
        step=step,
        bound=word_bound(len(roster.names)),
        guard=guard,
        drop_outs="semi-honest-server" if may_repeat else "stop",
    )
    context.state[_KEYS] = ConfigRecord({"keys": keys.to_bytes(), "guard": guard.to_bytes()})
    context.state[_ROSTER] = ConfigRecord({"roster": roster.to_bytes()})
    return answer


def require_introduction(context: Context) -> None:
    """Refuse to answer in a run in which the node, as it remembers, was not introduced.

    Raises
    ------
    SiteFault
        ``"lost-state"``: after a restart a second release would spend the budget again.
    """
    if _FACTS not in context.state:
        raise SiteFault("lost-state", _LOST)


def check_state_dir(context: Context) -> None:
    """Refuse to take part where `mark_release` could not write its note.

    Raises
    ------
    SiteFault
        ``"bad-configuration"`` with the folder.
    """
    try:
        where = _state_dir(context)
        if where is not None:
            with tempfile.TemporaryFile(dir=where):
                pass
    except _CANNOT_WRITE as error:
        raise _unwritable(context, error) from None


def mark_release(context: Context, name: str) -> None:
    """Note in `state-dir` of the node configuration, if it has one, that noise was drawn.

    The note outlives a restart of the SuperNode, which state in memory does not.

    Raises
    ------
    SiteFault
        ``"lost-state"`` if it is there already, ``"bad-configuration"`` if it cannot be written.
    """
    try:
        where = _state_dir(context)
        if where is not None:
            _touch_new(where / f"{run_name(context.run_id)}-{name}")
    except _CANNOT_WRITE as error:
        raise _unwritable(context, error) from None


def _touch_new(note: Path) -> None:
    try:
        note.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        raise SiteFault("lost-state", _LOST) from None


def _state_dir(context: Context) -> Path | None:
    """Folder of the task in `state-dir`, made if it is not there; None without `state-dir`."""
    directory = str(context.node_config.get("state-dir", "")).strip()
    if not directory:
        return None
    where = Path(directory).expanduser() / "roc-glm"
    where.mkdir(parents=True, exist_ok=True, mode=0o700)
    return where


def _unwritable(context: Context, error: Exception) -> SiteFault:
    words = getattr(error, "strerror", None) or type(error).__name__
    directory = context.node_config.get("state-dir")
    return SiteFault(
        "bad-configuration",
        f'node config "state-dir" = "{directory}": no file can be written there ({words})',
    )


def earlier_release(context: Context) -> RecordDict | None:
    """The release with noise that the site has sent in this run, if it has."""
    parts = {
        key.removeprefix(_RELEASE): record
        for key, record in context.state.items()
        if key.startswith(_RELEASE)
    }
    return RecordDict(parts) if parts else None


def remember_release(context: Context, content: RecordDict) -> None:
    """Keep a release with noise."""
    for key, record in content.items():
        context.state[_RELEASE + key] = record


def remember_noise_scale(context: Context, scale: float) -> None:
    """Keep the standard deviation of the release's noise."""
    context.state[_NOISE] = ConfigRecord({"scale": scale})


def noise_scale(context: Context) -> float:
    """Standard deviation of the noise of the release that was sent."""
    return cast(float, context.state.config_records[_NOISE]["scale"])


def remember_model(context: Context, text: str) -> None:
    """Keep the model file that came with the first introduction.

    Raises
    ------
    SiteFault
        ``"bad-request"`` if the run's configuration names no model (one of the server's making
        could read any column), ``"second-request"`` if it is not that of the first introduction.
    """
    if not context.run_config.get("roc-glm.model"):
        raise SiteFault(
            "bad-request", "a model file came, and the run's configuration has no roc-glm.model"
        )
    if (_MODEL in context.state or _FACTS in context.state) and known_model(context) != text:
        raise SiteFault(
            "second-request",
            "another model file than the first introduction of this run brought",
        )
    context.state[_MODEL] = ConfigRecord({"model": text})


def first_facts(context: Context, facts: Facts) -> Facts:
    """Facts of the first introduction of this run; these, if it is the first."""
    record = context.state.config_records.get(_FACTS)
    if record is None:
        context.state[_FACTS] = ConfigRecord(dict(facts))
        return facts
    return dict(record)


def known_model(context: Context) -> str:
    """The model file of this run; ``""`` if there is none."""
    record = context.state.config_records.get(_MODEL)
    return "" if record is None else cast(str, record["model"])


def _stored_keys(context: Context, name: str) -> SiteKeys:
    if _KEYS not in context.state:
        raise SiteFault("lost-state", _LOST)
    return own_keys(context, name)


def _pins(node_config: Mapping[str, object]) -> dict[str, str]:
    text = str(node_config.get("pinned-sites", ""))
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not separator for _, separator, _ in pairs):
        raise SiteFault(
            "malformed-fingerprint", 'pinned-sites: must be "name=fingerprint, name=fingerprint"'
        )
    return {site.strip(): code.strip() for site, _, code in pairs}
