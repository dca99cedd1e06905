"""Taking the noise out of noisy scores: the distribution on [0, 1] whose blur they are.

Noise of known variance flattens a survivor function and so biases the AUC towards 1/2. The
distribution of the scores is constant in equal cells of [0, 1]; its cell probabilities are fitted
by EM (Richardson 1972, Lucy 1974), stopped after a fixed number of rounds, which regularizes.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from tasks.roc_glm.cell_estimates import cell_auc
from tasks.roc_glm.survivor import FloatArray, IntArray

CELLS = 50
ROUNDS = 150
SMOOTH_ROUNDS = 20
REDRAWS = 100
MOST_NOISE = 0.25
"""Standard deviation of noise on scores in [0, 1] above which little can be found below it."""
MOST_COUNT_NOISE = 0.5
"""Standard deviation of the noise on a cumulative count, over the smaller class, likewise."""
_TAIL = 6.0  # noise standard deviations that the bins reach beyond [0, 1]
_FAR = 40.0  # standard deviations beyond which a normal density is 0 as a double


class NoiseBlur:
    """The map from cell probabilities on [0, 1] to bin probabilities of noisy scores.

    Noisy scores are counted in bins a quarter of the noise wide (never narrower than a quarter of
    a cell): an exact likelihood of the binned scores, whose cost does not depend on their number.

    Parameters
    ----------
    tau : float
        Standard deviation of the noise, above 0.
    cells : int
        Equal cells of [0, 1].

    Attributes
    ----------
    edges : (B - 1,) float64
        Inner edges of the bins; the outer ones are unbounded.
    kernel : (B, cells) float64
        Probability of each bin for a score uniform in each cell; columns sum to 1.
    """

    def __init__(self, tau: float, *, cells: int = CELLS) -> None:
        self.tau = tau
        width = max(tau / 4.0, 0.25 / cells)
        reach = _TAIL * tau
        bins = math.ceil((1.0 + 2.0 * reach) / width)
        self.edges = np.linspace(-reach, 1.0 + reach, bins + 1)[1:-1]
        self.kernel = _kernel(self.edges, tau, cells)

    def bin_counts(self, noisy: FloatArray, *, weights: IntArray | None = None) -> FloatArray:
        """Number of noisy scores in each bin.

        Parameters
        ----------
        noisy : (n,) float64
            In any order.
        weights : (n,) int64, optional
            Number of scores with each value; 1 by default.

        Returns
        -------
        (B,) float64
        """
        place = np.searchsorted(self.edges, noisy, side="left")
        counted = np.bincount(place, weights, minlength=len(self.kernel))
        return np.asarray(counted, dtype=np.float64)

    def deconvolve(self, bin_counts: FloatArray, *, rounds: int = ROUNDS) -> FloatArray:
        """Cell probabilities whose blur the counts are.

        Parameters
        ----------
        bin_counts : (..., B) float64
            Counts of noisy scores, a positive sum in each data set.
        rounds : int
            EM rounds from the uniform distribution.

        Returns
        -------
        (..., cells) float64
            Sum 1.
        """
        shares = bin_counts / bin_counts.sum(axis=-1, keepdims=True)
        cells = self.kernel.shape[1]
        fitted = np.full((*shares.shape[:-1], cells), 1.0 / cells)
        forward, back = np.ascontiguousarray(self.kernel.T), self.kernel
        for _ in range(rounds):
            expected = fitted @ forward
            ratio = np.divide(shares, expected, out=np.zeros_like(shares), where=expected > 0)
            fitted *= ratio @ back
        return np.asarray(fitted / fitted.sum(axis=-1, keepdims=True))

    def noise_variance(
        self,
        negative: FloatArray,
        positive_counts: FloatArray,
        *,
        num_negative: int,
        generator: np.random.Generator,
        redraws: int = REDRAWS,
        rounds: int = ROUNDS,
    ) -> float:
        """Variance that the noise on the negatives adds to the debiased AUC.

        The scores are held at the fitted distribution, the noise on them is drawn anew and
        deconvolved again. What the exact positives add is in their placement moments; here they
        are only the weights of the mean, for which they are deconvolved in `SMOOTH_ROUNDS`: the
        spikes of many rounds, which no exact positives have, would double the variance.

        Parameters
        ----------
        negative : (cells,) float64
            Deconvolved distribution of the negatives.
        positive_counts : (B,) float64
            Counts of the noisy positives in the bins.
        num_negative : int
            n0.
        generator : numpy.random.Generator
            Protects nobody, so any will do.
        redraws : int
            At least 2; the spread of the variance itself is sqrt(2 / redraws).
        """
        drawn = self._blurred_draws(negative, num_negative, redraws, generator)
        weights = self.deconvolve(positive_counts, rounds=SMOOTH_ROUNDS)
        aucs = cell_auc(self.deconvolve(drawn, rounds=rounds), weights)
        return float(np.var(aucs, ddof=1))

    def _blurred_draws(
        self,
        probabilities: FloatArray,
        number: int,
        redraws: int,
        generator: np.random.Generator,
    ) -> FloatArray:
        """Bin counts (redraws, B) of `number` scores, fixed in their cells, under new noise."""
        drawn = np.zeros((redraws, len(self.kernel)))
        for cell, inside in enumerate(apportion(probabilities, number)):
            if inside:
                drawn += generator.multinomial(inside, self.kernel[:, cell], size=redraws)
        return drawn


def apportion(probabilities: FloatArray, number: int) -> list[int]:
    """Whole numbers in proportion to probabilities (largest remainders) that sum to `number`."""
    quota = probabilities * number
    whole = np.floor(quota).astype(np.int64)
    remainder = np.argsort(whole - quota, kind="stable")
    whole[remainder[: number - int(whole.sum())]] += 1
    return [int(cell) for cell in whole]


def _kernel(edges: FloatArray, tau: float, cells: int) -> FloatArray:
    """Bin probabilities of (uniform in a cell) + noise: differences of the integrated Phi."""
    distance = edges[:, None] - np.arange(cells + 1) / cells
    # Farther out nothing changes any more; and z, or its square, could overflow.
    z = np.clip(distance, -_FAR * tau, _FAR * tau) / tau
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    integral = distance * ndtr(z) + tau * density
    below_edge = cells * (integral[:, :-1] - integral[:, 1:])
    below = np.vstack([np.zeros(cells), below_edge, np.ones(cells)])
    kernel = np.clip(np.diff(below, axis=0), 0.0, None)
    return np.asarray(kernel / kernel.sum(axis=0))
