"""A site's half of distributed Fisher scoring, for anyone's ClientApp.

Two lines register it::

    @app.query("fisher_scoring")
    @answering_faults
    def fisher_scoring(message: Message, context: Context) -> Message:
        rows = pandas.read_csv(context.node_config["data-path"])
        return answer(message, rows[["age", "bmi"]], rows["diabetes"], intercept=True)

:func:`tasks.site.client.answering_faults` keeps values of rows, which pandas and others put into
the text of their exceptions, from travelling to the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import Message
from numpy.typing import ArrayLike

from tasks.glm.families import (
    FAMILIES,
    Family,
    FisherSums,
    FloatArray,
    site_sums,
    starting_sums,
)
from tasks.glm.messages import FisherReply, FisherRequest
from tasks.site.faults import SiteFault

INTERCEPT = "(intercept)"


def answer(
    message: Message,
    X: ArrayLike,  # noqa: N803
    y: ArrayLike,
    *,
    trials: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    intercept: bool = False,
    feature_names: Sequence[str] | None = None,
    site: str = "",
    privacy_level: int = 5,
    families: Mapping[str, Family] = FAMILIES,
) -> Message:
    """Answer an iteration of :class:`strategies.fisher_scoring.FisherScoring`.

    Parameters
    ----------
    message : Message
        The request.
    X : (n, p) array or DataFrame
        Covariates in numbers; n may be 0. All sites have the same columns in the same order.
    y : (n,) array or Series
        Response: 0 or 1, number of ones where `trials` is given, counts, or reals.
    trials : (n,), optional
        Bernoulli responses that a row stands for (probit and logit).
    offset : (n,), optional
        Known part of the linear predictor.
    intercept : bool
        Put a column of ones, named ``(intercept)``, in front.
    feature_names : sequence of str, optional
        Names of the columns of `X`; default those of a DataFrame. The server refuses sites whose
        names differ, which is how columns in another order are found.
    site : str
        The site's name, by which the server orders its sums. Without names, or before they were
        exchanged, the order is that of the node ids, which differ from run to run, and so may the
        last bits of the result.
    privacy_level : int
        q: sums leave the site only if there is no row behind them, or at least q; for probit and
        logit of each response, 0 and 1. That is a rule for aggregates, no formal guarantee: see
        *What is revealed* of the strategy.
    families : mapping of str to Family
        Which the server may ask for; one's own beside or instead of those that come along.

    Returns
    -------
    Message
        The reply.

    Raises
    ------
    SiteFault
        ``"unknown-family"``, ``"bad-request"``, ``"bad-design"``, ``"bad-response"`` or
        ``"too-few-rows"``: names and counts, never a value.
    """
    request = _read(message, families)
    names, design = _design(X, feature_names, intercept=intercept)
    response = _vector("y", y)
    number = None if trials is None else _vector("trials", trials)
    known = None if offset is None else _vector("offset", offset)
    _check_lengths(design, y=response, trials=number, offset=known)
    sums = _sums(request, design, response, trials=number, offset=known, families=families)
    is_binary = families[request.family].binary
    _check_privacy_level(response, number, privacy_level, is_binary=is_binary)
    reply = FisherReply(site=site, feature_names=names, sums=sums)
    return Message(reply.to_record(), reply_to=message)


def _read(message: Message, families: Mapping[str, Family]) -> FisherRequest:
    try:
        request = FisherRequest.from_record(message.content)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        reason = f"a request of another form than expected ({type(error).__name__})"
        raise SiteFault("bad-request", reason) from None
    if request.family not in families:
        allowed = ", ".join(families)
        raise SiteFault("unknown-family", f"family = {request.family!r}: must be one of {allowed}")
    return request


def _sums(
    request: FisherRequest,
    design: FloatArray,
    response: FloatArray,
    *,
    trials: FloatArray | None,
    offset: FloatArray | None,
    families: Mapping[str, Family],
) -> FisherSums:
    family, coefficients = request.family, request.coefficients
    known = 0.0 if offset is None else offset
    if coefficients is None:
        return starting_sums(
            family, design, response, trials=trials, offset=known, families=families
        )
    if len(coefficients) != design.shape[1]:
        raise SiteFault(
            "bad-design",
            f"{design.shape[1]} columns here, {len(coefficients)} coefficients asked for",
        )
    return site_sums(
        *(family, design, response, coefficients), trials=trials, offset=known, families=families
    )


def _design(
    X: ArrayLike,  # noqa: N803
    feature_names: Sequence[str] | None,
    *,
    intercept: bool,
) -> tuple[tuple[str, ...], FloatArray]:
    design = _numbers("X", X)
    if design.ndim != 2:
        raise SiteFault("bad-design", f"X has {design.ndim} dimensions: must be rows and columns")
    columns = feature_names if feature_names is not None else getattr(X, "columns", None)
    if columns is None and not intercept and design.shape[1]:
        return (), design
    if columns is None:
        columns = [f"x{column}" for column in range(1, design.shape[1] + 1)]
    names = [str(column) for column in columns]
    if intercept:
        names.insert(0, INTERCEPT)
        design = np.column_stack([np.ones(len(design)), design])
    if len(names) != design.shape[1] or len(set(names)) != len(names) or not names:
        raise SiteFault(
            "bad-design",
            f"{design.shape[1]} columns named {', '.join(names) or 'nothing'}: "
            "must be one name each, all different",
        )
    return tuple(names), design


def _vector(what: str, values: ArrayLike) -> FloatArray:
    vector = _numbers(what, values)
    if vector.ndim != 1:
        raise SiteFault("bad-response", f"{what} has {vector.ndim} dimensions: must be 1")
    return vector


def _numbers(what: str, values: ArrayLike) -> FloatArray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (ValueError, TypeError):  # its text has the value
        code = "bad-design" if what == "X" else "bad-response"
        raise SiteFault(code, f"{what} holds something that is not a number") from None


def _check_lengths(design: FloatArray, **vectors: FloatArray | None) -> None:
    faults = [
        f"{name} has {len(vector)} entries, X {len(design)} rows: must be as many"
        for name, vector in vectors.items()
        if vector is not None and len(vector) != len(design)
    ]
    offset, trials = vectors["offset"], vectors["trials"]
    if offset is not None and (wild := int((~np.isfinite(offset)).sum())):
        faults.append(f"{wild} rows have a NaN or infinite offset")
    if trials is not None and (wild := int((~(np.isfinite(trials) & (trials >= 0))).sum())):
        faults.append(f"{wild} rows have trials that are not a finite number from 0")
    if faults:
        raise SiteFault("bad-design", *faults)


def _check_privacy_level(
    response: FloatArray, trials: FloatArray | None, privacy_level: int, *, is_binary: bool
) -> None:
    counts = {"rows": float(len(response))}
    if is_binary:
        ones = float(response.sum())
        total = float(len(response) if trials is None else trials.sum())
        counts = {"responses 1": ones, "responses 0": total - ones}
    few = [what for what, count in counts.items() if 0 < count < privacy_level]
    if few:  # how many there are is what must not leave
        raise SiteFault(
            "too-few-rows",
            f"fewer than privacy-level = {privacy_level} {' and '.join(few)} here: "
            "sums need none or at least as many",
        )
