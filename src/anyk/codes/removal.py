"""Least squares for many sets of replies of one code: what is left when some are taken away from all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anyk.codes.made import ReadOnly, frozen

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_RANK = 1e-9  # singular values below this fraction of the largest count as 0
_SPANNED = 1e-8  # what is shorter than this fraction of what it was lies in the span of others


class Removal(ReadOnly):
    """The least-squares weights without some replies, by one singular value decomposition for all sets.

    With ``B = U S V'`` and its pseudo-inverse P, the rows that are left span less than all of them by the vectors
    ``P[:, lost] c`` for which ``c`` is orthogonal to the lost rows of the left null space; what these have of the
    all-ones vector is what the error grows by. Small work where few replies are lost.
    """

    def __init__(self, matrix: Floats) -> None:
        """``matrix``: the encoding, shape (replies, partitions)."""
        self._partitions = matrix.shape[1]
        left, singular, right = np.linalg.svd(matrix, full_matrices=True)
        rank = int((singular > _RANK * singular[0]).sum())
        spanned = right[:rank]
        self._inverse = (spanned.T / singular[:rank]) @ left[:, :rank].T
        self._null = left[:, rank:]
        self._ones = spanned.T @ spanned.sum(axis=1)  # what all rows span of the all-ones vector
        self._error = self._partitions - float(self._ones @ self._ones)
        frozen((self._inverse, self._null, self._ones))

    def weights(self, lost: Indices) -> Floats | None:
        """Weights of smallest norm without ``lost``, shape (replies,); None where rounding spoils them."""
        gone = self._lost(lost)
        weights = self._inverse.T @ (self._ones - gone @ (gone.T @ self._ones))
        if self._null.shape[1] and len(lost):
            weights -= self._null @ (np.linalg.pinv(self._null[lost], rcond=_RANK) @ weights[lost])
        if np.abs(weights[lost]).max(initial=0.0) > _SPANNED * np.abs(weights).max():
            return None
        weights[lost] = 0.0
        return np.asarray(weights)

    def residuals(self, lost: Indices, more: Indices) -> Floats:
        """The least residual without ``lost`` and one of ``more``, for each; shape (len(more),)."""
        gone = self._lost(lost)
        error = self._error + float(np.square(gone.T @ self._ones).sum())
        found = self._inverse[:, more]
        free = np.ones(len(more), dtype=bool)  # whether the others do not span it
        if self._null.shape[1]:
            weights = -self._null[more] @ np.linalg.pinv(self._null[lost], rcond=_RANK)
            free = np.linalg.norm(self._null[more] + weights @ self._null[lost], axis=1) < _SPANNED
            found = found + self._inverse[:, lost] @ weights.T
        size = np.linalg.norm(found, axis=0)
        for _ in range(2):  # once is not enough for orthogonality in floating point, twice is
            found = found - gone @ (gone.T @ found)
        norms = np.linalg.norm(found, axis=0)
        free &= norms > _SPANNED * size
        grown = np.square(self._ones @ np.where(free, found / np.where(free, norms, 1.0), 0.0))
        return np.asarray(np.sqrt(np.maximum(error + grown, 0.0) / self._partitions))

    def _lost(self, lost: Indices) -> Floats:
        """An orthonormal basis of what is not spanned any more, shape (partitions, dimensions lost)."""
        found = self._inverse[:, lost]
        if self._null.shape[1] and len(lost):
            left, singular, _ = np.linalg.svd(self._null[lost], full_matrices=True)
            found = found @ left[:, int((singular > _SPANNED).sum()) :]
        return np.asarray(np.linalg.qr(found)[0])
