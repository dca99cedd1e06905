"""What a label owner adds up at a level of a tree, for every source and each of its candidates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.vertical_xgboost.buckets import BoolArray, BucketMap
from tasks.vertical_xgboost.candidates import CandidateLayout, IntpArray
from tasks.vertical_xgboost.fixed_point import IntArray
from tasks.vertical_xgboost.histograms import candidate_sums, node_sums, refused_candidates


@dataclass(frozen=True, eq=False)
class LevelSums:
    """Own gradients at a level, to be summed for every source.

    Parameters
    ----------
    layouts : tuple of CandidateLayout
        Of each source.
    maps : tuple of (features, n) uint8
        Buckets of own rows for each source.
    features : tuple of (features,) intp
        Of each source those that the tree may split, ascending.
    values : (2, roots, n) int64
        Gradients and Hessians as whole numbers.
    slots : (roots, n) intp
        Place of each row's node below each root among those of the level.
    num_nodes : int
        Of the level.
    min_instances : int
        Fewest own rows on a side.
    """

    layouts: tuple[CandidateLayout, ...]
    maps: tuple[BucketMap, ...]
    features: tuple[IntpArray, ...]
    values: IntArray
    slots: IntpArray
    num_nodes: int
    min_instances: int

    def of(self, source: int, order: IntpArray | None) -> IntArray:
        """Sums for a source: (1 + candidates, nodes, 2) int64, the full sums first.

        Parameters
        ----------
        source : int
        order : (candidates,) intp or None
            Candidate at each place, as those of the growing tree count; None: in their order.
        """
        layout = self._layout(source)
        sums = np.empty((1 + layout.num_candidates, self.num_nodes, 2), dtype=np.int64)
        sums[0] = node_sums(self.values, self.slots, num_nodes=self.num_nodes)
        if layout.num_candidates:
            buckets = self.maps[source][self.features[source]]
            left = candidate_sums(
                buckets, layout, self.values, self.slots, num_nodes=self.num_nodes
            )
            left = left if order is None else left[:, order]
            sums[1:] = left.transpose(1, 0, 2)
        return sums

    def refused(self, source: int, order: IntpArray | None) -> BoolArray:
        """Candidates of a source that this party refuses: (1 + candidates, nodes) bool."""
        layout = self._layout(source)
        refused = np.zeros((1 + layout.num_candidates, self.num_nodes), dtype=np.bool_)
        if layout.num_candidates:
            found = refused_candidates(
                self.maps[source][self.features[source]],
                layout,
                self.slots,
                num_nodes=self.num_nodes,
                min_instances=self.min_instances,
            )
            refused[1:] = (found if order is None else found[:, order]).T
        return refused

    def _layout(self, source: int) -> CandidateLayout:
        return self.layouts[source].of_features(self.features[source])
