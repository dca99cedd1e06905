"""What may be said about privacy after a run: mechanism, budget, neighbours, what is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tasks.privacy import gaussian
from tasks.roc_glm.release_names import Mechanism, Release

_SCORE_MOVES = (
    "two data sets in which one score differs by at most sensitivity = {sensitivity}, labels and "
    "class sizes alike"
)
_NEIGHBOURS: dict[Release, str] = {
    "noisy-scores": _SCORE_MOVES,
    "noisy-counts": _SCORE_MOVES,
    "noisy-histogram": "two data sets in which one patient is replaced by another of the same "
    "class; class sizes are public",
}

_WITHOUT_NOISE: dict[Release, str] = {
    "secure-counts": "no differential privacy is claimed; the server reads sums over all sites "
    "that have the class, {level}; where one site alone has a class, the sums of that class are "
    "that site's own",
    "binned": "no differential privacy is claimed; the server reads each site's counts, {level}",
    "exact": "none; the server reads every distinct score of every site with its class",
}

_LEVELS = {
    "class": "and each of these has at least privacy-level rows of it (a cell can hold fewer)",
    "cell": "and each of these has at least privacy-level rows of it, or none, in every cell; "
    "which cut points leave it so is told in clear for each site",
}
_AFTER_DROP_OUT = (
    "the masked sum was asked for again without the sites that were lost: the difference of the "
    "two sums, where both could be opened, is theirs"
)

# Exact sums that accompany `noisy-scores`, by mode.
ROC_GLM_SUMS = {
    "one-shot": "the exact sums w1 of positives at the thresholds",
    "fisher": "the exact sums of score vector and information of every round",
}
MOMENTS_OF_POSITIVES = "the exact moments of the positives' placement values"
_TRUSTED_POOL = (
    "a site finds its own noisy scores in the pool under which its exact positives are summed; "
    "that the others' are real, the server is trusted"
)


@dataclass(frozen=True)
class Guarantee:
    """The privacy statement of a run.

    Attributes
    ----------
    mechanism : str
        Name of the mechanism, "none" without noise.
    epsilon, delta : float or None
        Spent by all that was released under noise; the exact epsilon of the noise at this delta,
        which is below the configured one where the noise is larger than needed.
    neighbours : str
        The neighbouring relation that the numbers are about.
    not_covered : tuple of str
        What left the sites outside the guarantee.
    notes : tuple of str
        Assumptions that do not hold by themselves.
    """

    mechanism: str
    epsilon: float | None
    delta: float | None
    neighbours: str
    not_covered: tuple[str, ...]
    notes: tuple[str, ...]

    def sentence(self) -> str:
        """The statement in one paragraph."""
        if self.epsilon is None:
            return ". ".join([f"Privacy: {self.neighbours}", *self.notes]) + "."
        parts = [
            f"Privacy: {self.mechanism}, (epsilon, delta) = ({self.epsilon:.4g}, {self.delta:.4g}) "
            f"for all that was released under noise, for {self.neighbours}",
            f"not covered: {'; '.join(self.not_covered)}",
            *self.notes,
        ]
        return ". ".join(parts) + "."


def guarantee(
    release: Release,
    *,
    delta: float,
    noise_ratios: Sequence[float],
    exact_sums: Sequence[str] = (),
    mechanism: Mechanism = "analytic",
    score_sensitivity: float = 1.0,
    is_estimate: bool = False,
    is_shared: bool = False,
    level_of: Literal["class", "cell"] = "class",
    repeated: bool = False,
    is_probability: bool = True,
) -> Guarantee:
    """The privacy statement for a release.

    Parameters
    ----------
    release : str
    delta : float
        Delta at which epsilon is reported, for everything released together.
    noise_ratios : list of float
        Sensitivity over noise of each Gaussian release of the same class (the release itself, and
        the statistics where they have a budget); empty for releases without noise.
    exact_sums : sequence of str
        Names of the exact sums that left the sites beside the noisy release.
    mechanism : {"analytic", "classic"}
    score_sensitivity : float
        Delta2.
    is_estimate : bool
        Delta2 was estimated from data.
    is_shared : bool
        The noise is shared between sites under masks.
    level_of : {"class", "cell"}
        What has at least privacy-level rows.
    repeated : bool
        A masked sum was asked for again without sites that were lost.
    is_probability : bool
        All scores lie in [0, 1].
    """
    if release in _WITHOUT_NOISE:
        words = _WITHOUT_NOISE[release].format(level=_LEVELS[level_of])
        return Guarantee("none", None, None, words, (), (_AFTER_DROP_OUT,) if repeated else ())
    notes = ["each class of each site has this budget, by parallel composition"]
    if is_estimate:
        notes.append(
            f"sensitivity = {float(score_sensitivity)!r} is an estimate from the data and no "
            "bound on unseen patients, so (epsilon, delta) is one too"
        )
    if release != "noisy-histogram" and not is_probability and not is_estimate:
        notes.append(
            f"scores are not all in [0, 1]: sensitivity = {float(score_sensitivity)!r} is an "
            "assumption about the model and no range of its scores"
        )
    if release == "noisy-scores":
        notes.append(_TRUSTED_POOL)
    if is_shared:
        notes.append("it holds for the sum over sites, if every site adds its share of the noise")
    calibration: str = mechanism
    if mechanism == "classic" and len(noise_ratios) > 1:
        calibration = "classic, of the statistics analytic"
    return Guarantee(
        mechanism=f"Gaussian mechanism ({calibration} calibration)",
        epsilon=gaussian.composed_epsilon(delta=delta, ratios=noise_ratios),
        delta=delta,
        neighbours=_NEIGHBOURS[release].format(sensitivity=repr(float(score_sensitivity))),
        not_covered=(*exact_sums, "class sizes and labels"),
        notes=tuple(notes),
    )
