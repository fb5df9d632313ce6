"""Least squares for many sets of replies of one code, by removing the lost ones from a decomposition of all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anyk.codes.made import ReadOnly, frozen

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_RANK = 1e-9  # singular values below this fraction of the largest count as 0
_SPANNED = 1e-8  # a vector whose remainder is shorter than this fraction lies in the span of others


class Removal(ReadOnly):
    """The least-squares weights without some replies, by one singular value decomposition for all sets.

    With ``B = U S V'`` and its pseudo-inverse P, the remaining rows span less than all rows by the vectors
    ``P[:, lost] c`` for which ``c`` is orthogonal to the lost rows of the left null space. The error grows by the part
    of the all-ones vector in their span. Little work if few replies are lost.
    """

    def __init__(self, matrix: Floats) -> None:
        """Decompose ``matrix``, the encoding, shape (replies, partitions)."""
        self._partitions = matrix.shape[1]
        left, singular, right = np.linalg.svd(matrix, full_matrices=True)
        rank = int((singular > _RANK * singular[0]).sum())
        spanned = right[:rank]
        self._inverse = (spanned.T / singular[:rank]) @ left[:, :rank].T
        self._null = left[:, rank:]
        self._ones = spanned.T @ spanned.sum(axis=1)  # projection of the all-ones vector on the span of all rows
        self._error = self._partitions - float(self._ones @ self._ones)
        frozen((self._inverse, self._null, self._ones))

    def weights(self, lost: Indices) -> Floats | None:
        """Return weights of smallest norm without ``lost``, shape (replies,); None if rounding spoils them."""
        basis = self._lost_span(lost)
        weights = self._inverse.T @ (self._ones - basis @ (basis.T @ self._ones))
        if self._null.shape[1] and len(lost):
            weights -= self._null @ (np.linalg.pinv(self._null[lost], rcond=_RANK) @ weights[lost])
        if np.abs(weights[lost]).max(initial=0.0) > _SPANNED * np.abs(weights).max():
            return None
        weights[lost] = 0.0
        return np.asarray(weights)

    def residuals(self, lost: Indices, more: Indices) -> Floats:
        """Return the residuals without ``lost`` and each of ``more``, shape (len(more),)."""
        basis = self._lost_span(lost)
        error = self._error + float(np.square(basis.T @ self._ones).sum())
        vectors = self._inverse[:, more]
        free = np.ones(len(more), dtype=bool)  # whether the remaining rows do not span the vector
        if self._null.shape[1]:
            weights = -self._null[more] @ np.linalg.pinv(self._null[lost], rcond=_RANK)
            free = np.linalg.norm(self._null[more] + weights @ self._null[lost], axis=1) < _SPANNED
            vectors = vectors + self._inverse[:, lost] @ weights.T
        size = np.linalg.norm(vectors, axis=0)
        for _ in range(2):  # once is not enough for orthogonality in floating point, twice is
            vectors = vectors - basis @ (basis.T @ vectors)
        norms = np.linalg.norm(vectors, axis=0)
        free &= norms > _SPANNED * size
        grown = np.square(self._ones @ np.where(free, vectors / np.where(free, norms, 1.0), 0.0))
        return np.asarray(np.sqrt(np.maximum(error + grown, 0.0) / self._partitions))

    def _lost_span(self, lost: Indices) -> Floats:
        """Return an orthonormal basis of the lost part of the span, shape (partitions, dimensions)."""
        vectors = self._inverse[:, lost]
        if self._null.shape[1] and len(lost):
            left, singular, _ = np.linalg.svd(self._null[lost], full_matrices=True)
            vectors = vectors @ left[:, int((singular > _SPANNED).sum()) :]
        return np.linalg.qr(vectors)[0]
