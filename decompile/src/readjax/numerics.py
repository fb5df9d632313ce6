"""XLA's operations that NumPy lacks. These functions are copied, unchanged, into the texts that need them.

They have no annotations, import only NumPy and SciPy, use no other names of this module than each other's, and have
lines of at most 88 columns, ruff's default.
"""

import base64
import itertools
import math

import numpy as np
from scipy import linalg


def decode_array(code, dtype, shape):
    """Decode an array from its bytes in base 64."""
    return np.frombuffer(base64.b64decode(code), dtype).reshape(shape)


def divide_integers(x, y):
    """Quotient rounded towards zero; -1 for a division by zero."""
    zero = np.equal(y, 0)
    by = np.where(zero, np.ones_like(y), y)
    remainder = np.fmod(x, by)
    return np.where(zero, ~np.zeros_like(y), np.floor_divide(x - remainder, by))


def remainder_integers(x, y):
    """Remainder with the sign of x; x for a division by zero."""
    zero = np.equal(y, 0)
    return np.where(zero, x, np.fmod(x, np.where(zero, np.ones_like(y), y)))


def to_integer(x, dtype):
    """Truncate to integers; saturate numbers out of range, and replace NaN by 0."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.asarray(x, np.float64)
    too_low, too_high = x <= least, x >= most
    integers = np.where(too_low | too_high | np.isnan(x), 0.0, x).astype(dtype)
    return np.where(too_high, dtype(most), np.where(too_low, dtype(least), integers))


def shift_right_logical(x, bits):
    """Shift to the right, with zeros from the left."""
    x, bits = np.asarray(x), np.asarray(bits)
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    return np.asarray(x.view(unsigned) >> bits.view(unsigned)).view(x.dtype)


def leading_zeros(x):
    """The number of zero bits before the highest one bit."""
    x = np.asarray(x)
    bits = 8 * x.dtype.itemsize
    word = x.view(np.dtype(f"u{x.dtype.itemsize}"))
    count = np.full(x.shape, bits, x.dtype)
    for place in range(bits):
        zeros = x.dtype.type(bits - 1 - place)
        count = np.where(word >> word.dtype.type(place) != 0, zeros, count)
    return count


def high_product(x, y):
    """The upper half of the product of two integers."""
    bits = 8 * x.dtype.itemsize
    product = np.asarray(x).astype(object) * np.asarray(y).astype(object)
    return np.asarray(product >> bits).astype(x.dtype)


def round_half_away(x):
    """Round to the nearest integer, halves away from zero."""
    whole = np.trunc(x)
    return whole + np.where(np.abs(x - whole) >= 0.5, np.sign(x), np.zeros_like(x))


def reduce_precision(x, exponent_bits, mantissa_bits):
    """Round to a floating-point format with fewer bits."""
    x = np.asarray(x)
    width = np.finfo(x.dtype).nmant
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    bits = x.view(unsigned)
    drop = unsigned.type(max(width - mantissa_bits, 0))
    if drop:
        unit = unsigned.type(1)
        half = (unit << (drop - unit)) - unit
        even = (bits >> drop) & unit
        bits = (bits + half + even) >> drop << drop
    rounded = np.where(np.isfinite(x), bits.view(x.dtype), x)
    bias = 2 ** (exponent_bits - 1) - 1
    if bias < 2 ** (np.finfo(x.dtype).nexp - 1) - 1:
        largest = x.dtype.type(math.ldexp(2.0 - 2.0**-mantissa_bits, bias))
        smallest = x.dtype.type(math.ldexp(1.0, 1 - bias))
        zero, infinite = x.dtype.type(0), x.dtype.type(np.inf)
        zero, infinite = np.copysign(zero, x), np.copysign(infinite, x)
        rounded = np.where(np.abs(rounded) > largest, infinite, rounded)
        rounded = np.where(np.abs(rounded) < smallest, zero, rounded)
    return np.where(np.isnan(x), x, rounded)


def bitcast(x, dtype):
    """Interpret the bits as another type; a change of width changes the last axis."""
    x, dtype = np.asarray(x, order="C"), np.dtype(dtype)
    if dtype.itemsize < x.dtype.itemsize:
        return x[..., None].view(dtype)
    if dtype.itemsize > x.dtype.itemsize:
        return np.ascontiguousarray(x).view(dtype)[..., 0]
    return x.view(dtype)


def pad(x, value, *ends):
    """Pad each axis with (low, high, inner) values at its ends and between elements."""
    for axis, (low, high, inner) in enumerate(ends):
        shape = list(x.shape)
        spread = shape[axis] + max(shape[axis] - 1, 0) * inner
        shape[axis] = max(low, 0) + spread + max(high, 0)
        padded = np.full(shape, value, x.dtype)
        place = [slice(None)] * x.ndim
        place[axis] = slice(max(low, 0), max(low, 0) + spread, inner + 1)
        padded[tuple(place)] = x
        place[axis] = slice(max(-low, 0), shape[axis] - max(-high, 0))
        x = padded[tuple(place)]
    return x


def dynamic_slice(x, starts, sizes):
    """A window; a window that reaches over the end is moved inside."""
    window = []
    for start, length, size in zip(starts, x.shape, sizes):
        first = min(max(int(start), 0), length - size)
        window.append(slice(first, first + size))
    return x[tuple(window)]


def dynamic_update_slice(x, update, starts):
    """Overwrite a window; a window that reaches over the end is moved inside."""
    result = np.array(x)
    dynamic_slice(result, starts, update.shape)[...] = update
    return result


def window_indices(shape, starts, axes, sizes, dropped, batch, lead):
    """Indices of windows, in the shape of starts and window; whether they fit."""
    outer = starts.shape[:-1]
    window_axes = [axis for axis in range(len(shape)) if axis not in (*dropped, *batch)]
    fits = np.ones(outer, np.bool_)
    index = []
    for axis, length in enumerate(shape):
        first = np.zeros((), np.int64)
        if axis in axes:
            first = starts[..., axes.index(axis)].astype(np.int64)
            fits &= (first >= 0) & (first <= length - sizes[axis])
            first = np.clip(first, 0, length - sizes[axis])
        elif axis in batch:
            along = lead[batch.index(axis)]
            first = np.arange(length)
            first = first.reshape([-1 if d == along else 1 for d in range(len(outer))])
        first = np.broadcast_to(first, outer).reshape(outer + (1,) * len(window_axes))
        if axis in window_axes:
            step = np.arange(sizes[axis])
            first = first + step.reshape([-1 if axis == d else 1 for d in window_axes])
        index.append(first)
    return tuple(index), fits


def gather(x, starts, offset, dropped, axes, sizes, batch=(), lead=(), fill=None):
    """XLA's gather: windows of x at the places along the last axis of starts.

    Windows that do not fit are moved inside, or filled with ``fill`` if it is given.
    """
    index, fits = window_indices(x.shape, starts, axes, sizes, dropped, batch, lead)
    gathered = x[index]
    if fill is not None:
        fits = fits.reshape(fits.shape + (1,) * (gathered.ndim - fits.ndim))
        gathered = np.where(fits, gathered, x.dtype.type(fill))
    return np.moveaxis(gathered, range(starts.ndim - 1, gathered.ndim), offset)


def take(x, places, axis, fill):
    """Slices of x along an axis, filled with ``fill`` for places that do not exist."""
    slices = np.take(x, places, axis, mode="clip")
    fits = np.asarray((places >= 0) & (places < x.shape[axis]))
    fits = fits.reshape(fits.shape + (1,) * (x.ndim - 1 - axis))
    return np.where(fits, slices, x.dtype.type(fill))


def scatter(
    x,
    starts,
    updates,
    window,
    inserted,
    axes,
    batch=(),
    lead=(),
    combine=None,
    apply=None,
    clip=False,
):
    """XLA's scatter: overwrite windows of x that begin at starts, or combine them.

    Windows that do not fit are skipped, or moved inside if ``clip``.
    """
    window_axes = [axis for axis in range(x.ndim) if axis not in (*inserted, *batch)]
    sizes = [1] * x.ndim
    for axis, along in zip(window_axes, window):
        sizes[axis] = updates.shape[along]
    index, fits = window_indices(x.shape, starts, axes, sizes, inserted, batch, lead)
    if clip:
        fits = np.ones_like(fits)
    last = range(updates.ndim - len(window), updates.ndim)
    updates = np.moveaxis(updates, window, last)
    index, updates = tuple(part[fits] for part in index), updates[fits]
    result = np.array(x)
    if apply is not None:
        result[index] = apply(result[index])
    elif combine is None:
        result[index] = updates
    else:
        combine.at(result, index, updates)
    return result


def windows(x, fill, sizes, strides, padding, dilation=None, window_dilation=None):
    """The moving windows of an array, along further axes at the end."""
    dilation = dilation or (1,) * x.ndim
    window_dilation = window_dilation or (1,) * x.ndim
    x = pad(x, fill, *((a, b, d - 1) for (a, b), d in zip(padding, dilation)))
    spans = tuple(d * (size - 1) + 1 for size, d in zip(sizes, window_dilation))
    if any(n < span for n, span in zip(x.shape, spans)):
        pairs = zip(x.shape, spans, strides)
        counts = [(n - span) // step + 1 if n >= span else 0 for n, span, step in pairs]
        return np.empty((*counts, *sizes), x.dtype)
    view = np.lib.stride_tricks.sliding_window_view(x, spans)
    steps = tuple(slice(None, None, step) for step in (*strides, *window_dilation))
    return view[steps]


def extremes_of_windows(x, fill, sizes, strides, padding, largest):
    """Indices of each window's extreme in the padded array; the array's shape."""
    view = windows(x, fill, sizes, strides, padding)
    flat = view.reshape(*view.shape[: x.ndim], math.prod(sizes))
    place = flat.argmax(-1) if largest else flat.argmin(-1)
    shape = tuple(n + a + b for n, (a, b) in zip(x.shape, padding))
    within = np.unravel_index(place, sizes)
    begins = np.meshgrid(*map(np.arange, place.shape), indexing="ij", sparse=True)
    index = [a + step * b for a, step, b in zip(within, strides, begins)]
    return tuple(index), shape


def add_to_extremes(source, x, fill, sizes, strides, padding, largest):
    """Add each window's source at the window's extreme."""
    index, shape = extremes_of_windows(x, fill, sizes, strides, padding, largest)
    total = np.zeros(shape, source.dtype)
    np.add.at(total, index, source)
    return total[tuple(slice(a, a + n) for n, (a, _) in zip(x.shape, padding))]


def take_at_extremes(values, x, fill, sizes, strides, padding, largest):
    """The values at the extreme of each window of x."""
    index, _ = extremes_of_windows(x, fill, sizes, strides, padding, largest)
    return pad(values, 0, *((a, b, 0) for a, b in padding))[index]


def convolve(
    x,
    kernel,
    strides,
    padding,
    dilation=None,
    kernel_dilation=None,
    groups=1,
    batch_groups=1,
):
    """Convolution of (batch, channels, space) with (features, channels, space)."""
    space = len(strides)
    if batch_groups > 1:
        options = strides, padding, dilation, kernel_dilation
        pairs = zip(np.split(x, batch_groups), np.split(kernel, batch_groups))
        return np.concatenate([convolve(a, b, *options) for a, b in pairs], 1)
    sizes, steps = (1, 1, *kernel.shape[2:]), (1, 1, *strides)
    dilation = (1, 1, *(dilation or (1,) * space))
    kernel_dilation = (1, 1, *(kernel_dilation or (1,) * space))
    ends = ((0, 0), (0, 0), *padding)
    view = windows(x, 0, sizes, steps, ends, dilation, kernel_dilation)
    view = view.reshape(view.shape[: 2 + space] + kernel.shape[2:])
    batch, channels, *places = view.shape[: 2 + space]
    # a row of the matrix is the window at one place in one group
    rows = view.reshape(batch, groups, channels // groups, *places, *kernel.shape[2:])
    rows = np.moveaxis(rows, (1, 0, *range(3, 3 + space)), range(2 + space))
    width, features = math.prod(kernel.shape[1:]), kernel.shape[0] // groups
    rows = rows.reshape(groups, batch * math.prod(places), width)
    y = rows @ kernel.reshape(groups, features, width).mT
    y = np.moveaxis(y.reshape(groups, batch, *places, features), (0, -1), (1, 2))
    return y.reshape(batch, kernel.shape[0], *places)


def sort_together(arrays, axis, keys):
    """Sort all arrays by the first ones, the keys."""
    order = np.lexsort(tuple(arrays[:keys])[::-1], axis=axis)
    return [np.take_along_axis(x, order, axis) for x in arrays]


def total_order(x):
    """Integers in XLA's order of floats: -NaN, -inf, ..., -0, 0, ..., inf, NaN."""
    if x.dtype.kind != "f":
        return x
    bits = x.view(np.dtype(f"i{x.dtype.itemsize}"))
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


def top_k(x, k, axis):
    """The k largest numbers and their places; the first ones among equals."""
    rising = np.argsort(np.flip(total_order(x), axis), axis, kind="stable")
    order = x.shape[axis] - 1 - np.flip(rising, axis)
    order = np.take(order, range(k), axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int32)


def cholesky(x):
    """Lower factor; NaN for matrices that are not positive definite."""
    factor = np.empty_like(x)
    for place in np.ndindex(*x.shape[:-2]):
        try:
            factor[place] = np.linalg.cholesky(x[place])
        except np.linalg.LinAlgError:
            factor[place] = np.nan
    return factor


def triangular_solve(a, b, left, lower, transpose, unit):
    """Solve op(a) x = b, or x op(a) = b; op is 0: a, 1: a.T, 2: its conjugate."""
    trsm = linalg.get_blas_funcs("trsm", (a, b))
    x = np.empty(b.shape, b.dtype)
    for place in np.ndindex(*b.shape[:-2]):
        x[place] = trsm(1.0, a[place], b[place], not left, lower, transpose, unit)
    return x


def permutation_of_pivots(pivots, size):
    """The order of rows after exchanges."""
    permutation = np.empty((*pivots.shape[:-1], size), np.int32)
    for place in np.ndindex(*pivots.shape[:-1]):
        order = list(range(size))
        for row, other in enumerate(pivots[place]):
            order[row], order[other] = order[other], order[row]
        permutation[place] = order
    return permutation


def lu(x):
    """Both factors in one matrix, the exchanges of rows, and the order after them."""
    getrf = linalg.get_lapack_funcs("getrf", (x,))
    factors = np.empty_like(x)
    pivots = np.empty((*x.shape[:-2], min(x.shape[-2:])), np.int32)
    for place in np.ndindex(*x.shape[:-2]):
        factors[place], pivots[place], _ = getrf(x[place])
    return factors, pivots, permutation_of_pivots(pivots, x.shape[-2])


def pivoted_qr(x, full):
    """QR with columns in order of their weight (column pivoting)."""
    mode = "full" if full else "economic"
    matrices = x.reshape(-1, *x.shape[-2:])
    parts = [linalg.qr(matrix, mode=mode, pivoting=True) for matrix in matrices]
    q, r, order = (np.stack(part) for part in zip(*parts))
    results = q, r, order.astype(np.int32)
    return tuple(result.reshape(x.shape[:-2] + result.shape[1:]) for result in results)


def householder(x):
    """QR with Q as Householder reflectors below the diagonal; their factors."""
    geqrf = linalg.get_lapack_funcs("geqrf", (x,))
    factors = np.empty_like(x)
    scales = np.empty((*x.shape[:-2], min(x.shape[-2:])), x.dtype)
    for place in np.ndindex(*x.shape[:-2]):
        factors[place], scales[place], _, _ = geqrf(x[place])
    return factors, scales


def householder_product(x, scales):
    """The first columns of the product of Householder reflectors."""
    rows, columns = x.shape[-2:]
    products = np.zeros_like(x)
    for place in np.ndindex(*x.shape[:-2]):
        product = np.eye(rows, columns, dtype=x.dtype)
        for k in reversed(range(scales.shape[-1])):
            v = np.concatenate([np.zeros(k), np.ones(1), x[place][k + 1 :, k]])
            v = v.astype(x.dtype)
            product = product - scales[place][k] * np.outer(v, v.conj() @ product)
        products[place] = product
    return products


def hessenberg(x):
    """Hessenberg form with the reflectors below it; their factors."""
    gehrd = linalg.get_lapack_funcs("gehrd", (x,))
    form = np.empty_like(x)
    scales = np.empty((*x.shape[:-2], x.shape[-1] - 1), x.dtype)
    for place in np.ndindex(*x.shape[:-2]):
        form[place], scales[place], _ = gehrd(x[place])
    return form, scales


def cholesky_update(factor, w):
    """The upper factor of factor.T @ factor + outer(w, w)."""
    return np.linalg.cholesky(factor.T @ factor + w[:, None] * w).T


def schur(x, vectors):
    """Schur form and vectors."""
    form, basis = np.empty_like(x), np.empty_like(x)
    output = "complex" if np.iscomplexobj(x) else "real"
    for place in np.ndindex(*x.shape[:-2]):
        form[place], basis[place] = linalg.schur(x[place], output=output)
    return (form, basis) if vectors else (form,)


def eig(x, left, right):
    """Eigenvalues and vectors of general matrices."""
    dtype = np.result_type(x.dtype, np.complex64)
    values = np.empty(x.shape[:-1], dtype)
    lefts, rights = np.empty(x.shape, dtype), np.empty(x.shape, dtype)
    for place in np.ndindex(*x.shape[:-2]):
        values[place], lefts[place], rights[place] = linalg.eig(x[place], left=True)
    return (values, *([lefts] if left else []), *([rights] if right else []))


def tridiagonal_solve(lower, diagonal, upper, b):
    """Solve with a matrix that has three diagonals."""
    solution = np.empty_like(b)
    for place in np.ndindex(*b.shape[:-2]):
        above, below = np.roll(upper[place], 1), np.roll(lower[place], -1)
        bands = np.stack([above, diagonal[place], below])
        solution[place] = linalg.solve_banded((1, 1), bands, b[place])
    return solution


def threefry2x32(key_0, key_1, x_0, x_1):
    """The Threefry hash of two words with a key of two words (Salmon et al. 2011)."""
    u32 = np.uint32
    keys = [key_0, key_1, key_0 ^ key_1 ^ u32(0x1BD11BDA)]
    x_0, x_1 = x_0 + keys[0], x_1 + keys[1]
    turns = itertools.cycle([(13, 15, 26, 6), (17, 29, 16, 24)])
    for step, group in zip(range(1, 6), turns):
        for turn in group:
            x_0 = x_0 + x_1
            x_1 = (x_1 << u32(turn)) | (x_1 >> u32(32 - turn))
            x_1 = x_0 ^ x_1
        x_0, x_1 = x_0 + keys[step % 3], x_1 + keys[(step + 1) % 3] + u32(step)
    return x_0, x_1


def hash_counts(key, shape):
    """Hash the places of a shape with each key: two random words per place."""
    count = np.arange(math.prod(shape), dtype=np.uint64).reshape(shape)
    high, low = (count >> np.uint64(32)).astype(np.uint32), count.astype(np.uint32)
    lead = key.shape[:-1] + (1,) * len(shape)
    return threefry2x32(key[..., 0].reshape(lead), key[..., 1].reshape(lead), high, low)


def random_bits(key, width, shape):
    """Random unsigned integers of JAX's partitionable Threefry."""
    high, low = hash_counts(key, shape)
    if width == 64:
        return (high.astype(np.uint64) << np.uint64(32)) | low
    return (high ^ low).astype(f"u{width // 8}")


def random_split(key, shape):
    """New keys from a key."""
    return np.stack(hash_counts(key, shape), -1)


def random_seed(seed):
    """A key from an integer."""
    seed = np.asarray(seed)
    wide = seed.view(np.dtype(f"u{seed.dtype.itemsize}")).astype(np.uint64)
    words = [wide >> np.uint64(32), wide & np.uint64(0xFFFFFFFF)]
    return np.stack(words, -1).astype(np.uint32)


def random_fold_in(key, data):
    """A new key from a key and an integer."""
    count = random_seed(np.asarray(data).astype(np.uint32))
    words = threefry2x32(key[..., 0], key[..., 1], count[..., 0], count[..., 1])
    return np.stack(words, -1)
