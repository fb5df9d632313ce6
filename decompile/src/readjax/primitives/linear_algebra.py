"""Factorisations, triangular and tridiagonal systems, eigenvalues, Fourier transforms."""

from __future__ import annotations

from readjax import expressions as ex
from readjax.equations import Equation
from readjax.expressions import Expr
from readjax.primitives.rules import copied_function, lax, parameter, plain, row
from readjax.writing import Writer


def _cholesky_jax(w: Writer, eq: Equation) -> Expr:
    return w.call(eq, "lax.linalg.cholesky", symmetrize_input="False")


row("cholesky", jax=_cholesky_jax, numpy=copied_function("cholesky"))
row("lu", jax=lax("linalg.lu"), numpy=copied_function("lu"))


def _pivots_jax(w: Writer, eq: Equation) -> Expr:
    return w.call(eq, "lax.linalg.lu_pivots_to_permutation", parameter(eq, "permutation_size"))


row("lu_pivots_to_permutation", jax=_pivots_jax, numpy=copied_function("permutation_of_pivots", "permutation_size"))


def _triangular_numpy(w: Writer, eq: Equation) -> Expr:
    params = eq.params
    transpose = (2 if params["conjugate_a"] and eq.dtype.startswith("complex") else 1) if params["transpose_a"] else 0
    a, b = w.arguments(eq)
    if params["conjugate_a"] and not params["transpose_a"]:
        a = ex.call("np.conj", a, shape=a.shape)
    return ex.call(
        w.copy("triangular_solve"),
        a,
        b,
        shape=eq.shape,
        left=parameter(eq, "left_side"),
        lower=parameter(eq, "lower"),
        transpose=str(transpose),
        unit=parameter(eq, "unit_diagonal"),
    )


row(
    "triangular_solve",
    jax=lax("linalg.triangular_solve", "left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal"),
    numpy=_triangular_numpy,
)


def _eigh_jax(w: Writer, eq: Equation) -> Expr:
    keywords: dict[str, Expr | str] = {"lower": parameter(eq, "lower"), "symmetrize_input": "False"}
    if not eq.params["sort_eigenvalues"]:
        keywords["sort_eigenvalues"] = "False"
    if eq.params.get("subset_by_index") is not None:
        keywords["subset_by_index"] = parameter(eq, "subset_by_index")
    return w.call(eq, "lax.linalg.eigh", **keywords)


def _eigh_numpy(w: Writer, eq: Equation) -> Expr:
    half = "" if eq.params["lower"] else ', UPLO="U"'
    eigen = Expr(f"np.linalg.eigh({w.typed(eq.inputs[0])}{half})[::-1]", ex.CALL)
    subset = eq.params.get("subset_by_index")
    if subset is None:
        return eigen
    targets = [w.names.take("vectors"), w.names.take("values")]
    w.assign(targets, eigen)
    columns = f"{int(subset[0])}:{int(subset[1])}"
    return ex.sequence([Expr(f"{target}[..., {columns}]") for target in targets])


row("eigh", jax=_eigh_jax, numpy=_eigh_numpy)


def _svd(w: Writer, eq: Equation) -> Expr:
    """Reorder the results of the libraries' functions (u, s, vh) as the primitive's (s, u, vh)."""
    keywords = {"full_matrices": parameter(eq, "full_matrices"), "compute_uv": parameter(eq, "compute_uv")}
    if w.target == "numpy":
        del keywords["compute_uv" if eq.params["compute_uv"] else "full_matrices"]
    svd = w.call(eq, "lax.linalg.svd" if w.target == "jax" else "np.linalg.svd", **keywords)
    if len(eq.outputs) == 1:
        return svd
    names = [w.names.take(word) for word in ("u", "singular", "vh")]
    w.assign(names, svd)
    return ex.sequence([ex.name(names[place]) for place in (1, 0, 2)])


row("svd", jax=_svd, numpy=_svd)


def _qr_numpy(w: Writer, eq: Equation) -> Expr:
    if eq.params["pivoting"]:
        return w.call(eq, w.copy("pivoted_qr"), parameter(eq, "full_matrices"))
    return w.call(eq, "np.linalg.qr", **({"mode": '"complete"'} if eq.params["full_matrices"] else {}))


def _qr_jax(w: Writer, eq: Equation) -> Expr:
    pivoting = {"pivoting": "True"} if eq.params["pivoting"] else {}
    return w.call(eq, "lax.linalg.qr", full_matrices=parameter(eq, "full_matrices"), **pivoting)


row("qr", jax=_qr_jax, numpy=_qr_numpy)
row("geqrf", numpy=copied_function("householder"))
for _name in ("householder_product", "hessenberg", "cholesky_update", "tridiagonal_solve"):
    row(_name, jax=lax(f"linalg.{_name}"), numpy=copied_function(_name))
row("tridiagonal", jax=lax("linalg.tridiagonal", "lower"))
row("ormqr", jax=lax("linalg.ormqr", "left", "transpose"))


def _schur(w: Writer, eq: Equation) -> Expr:
    vectors = parameter(eq, "compute_schur_vectors")
    if w.target == "jax":
        schur = w.call(eq, "lax.linalg.schur", compute_schur_vectors=vectors)
    else:
        schur = w.call(eq, w.copy("schur"), vectors)
    return schur if len(eq.outputs) > 1 else ex.index(schur, "0", eq.shape)


row("schur", jax=_schur, numpy=_schur)


def _eig(w: Writer, eq: Equation) -> Expr:
    sides = {name: parameter(eq, name) for name in ("compute_left_eigenvectors", "compute_right_eigenvectors")}
    eigen = w.call(eq, "lax.linalg.eig", **sides) if w.target == "jax" else w.call(eq, w.copy("eig"), *sides.values())
    return eigen if len(eq.outputs) > 1 else ex.index(eigen, "0", eq.shape)


row("eig", jax=_eig, numpy=_eig)


def _symmetric_product(w: Writer, eq: Equation) -> Expr:
    a, c = w.arguments(eq)
    alpha, beta = (ex.raw(repr(float(eq.params[name]))) for name in ("alpha", "beta"))
    product = ex.binary("*", alpha, ex.binary("@", a, ex.attribute(a, "mT")))
    return ex.binary("+", product, ex.binary("*", beta, c), eq.shape)


row("symmetric_product", jax=_symmetric_product, numpy=_symmetric_product)


def _fft(w: Writer, eq: Equation) -> Expr:
    kind = eq.params["fft_type"]
    kind = getattr(kind, "name", None) or ("FFT", "IFFT", "RFFT", "IRFFT")[int(kind)]
    lengths, rank = plain(eq.params["fft_lengths"]), len(eq.shape)
    function = f"{w.xp}.fft.{kind.lower()}"
    if w.target == "jax" and kind == "IRFFT":  # jax.numpy's first pads and truncates
        return w.call(eq, "lax.fft", "lax.FftType.IRFFT", ex.literal(lengths))
    if len(lengths) == 1:
        return w.call(eq, function, *([str(lengths[0])] if kind == "IRFFT" else []))
    sizes = {"s": ex.literal(lengths)} if kind == "IRFFT" else {}
    return w.call(eq, f"{function}n", **sizes, axes=ex.literal(tuple(range(rank - len(lengths), rank))))


row("fft", jax=_fft, numpy=_fft)
