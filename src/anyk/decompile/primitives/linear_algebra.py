"""Factorisations, triangular and tridiagonal systems, eigenvalues, Fourier transforms."""

from __future__ import annotations

from anyk.decompile import expressions as ex
from anyk.decompile.equations import Equation
from anyk.decompile.expressions import Expr
from anyk.decompile.primitives.rules import plain, row
from anyk.decompile.writing import Rule, Writer


def _jax(function: str, *parameters: str) -> Rule:
    """Return the rule for a function of ``lax.linalg``, without parameters that are None or False."""

    def rule(w: Writer, eq: Equation) -> Expr:
        keywords = {
            name: ex.literal(plain(eq.params[name])) for name in parameters if eq.params.get(name) not in (None, False)
        }
        return ex.call(f"lax.linalg.{function}", *(w.typed(a) for a in eq.inputs), shape=eq.shape, **keywords)

    return rule


def _copied_function(function: str) -> Rule:
    def rule(w: Writer, eq: Equation) -> Expr:
        return ex.call(w.copy(function), *(w.typed(a) for a in eq.inputs), shape=eq.shape)

    return rule


def _cholesky_jax(w: Writer, eq: Equation) -> Expr:
    return ex.call("lax.linalg.cholesky", w.typed(eq.inputs[0]), symmetrize_input="False", shape=eq.shape)


row("cholesky", jax=_cholesky_jax, numpy=_copied_function("cholesky"))
row("lu", jax=_jax("lu"), numpy=_copied_function("lu"))


def _pivots(w: Writer, eq: Equation) -> Expr:
    size = str(int(eq.params["permutation_size"]))
    if w.target == "jax":
        return ex.call("lax.linalg.lu_pivots_to_permutation", w.typed(eq.inputs[0]), size, shape=eq.shape)
    return ex.call(w.copy("permutation_of_pivots"), w.typed(eq.inputs[0]), size, shape=eq.shape)


row("lu_pivots_to_permutation", jax=_pivots, numpy=_pivots)


def _triangular_numpy(w: Writer, eq: Equation) -> Expr:
    params = eq.params
    transpose = (2 if params["conjugate_a"] and eq.dtype.startswith("complex") else 1) if params["transpose_a"] else 0
    a, b = (w.typed(atom) for atom in eq.inputs)
    if params["conjugate_a"] and not params["transpose_a"]:
        a = ex.call("np.conj", a, shape=a.shape)
    return ex.call(
        w.copy("triangular_solve"),
        a,
        b,
        shape=eq.shape,
        left=str(bool(params["left_side"])),
        lower=str(bool(params["lower"])),
        transpose=str(transpose),
        unit=str(bool(params["unit_diagonal"])),
    )


row(
    "triangular_solve",
    jax=_jax("triangular_solve", "left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal"),
    numpy=_triangular_numpy,
)


def _eigh_jax(w: Writer, eq: Equation) -> Expr:
    keywords: dict[str, Expr | str] = {"lower": str(bool(eq.params["lower"])), "symmetrize_input": "False"}
    if not eq.params["sort_eigenvalues"]:
        keywords["sort_eigenvalues"] = "False"
    if eq.params.get("subset_by_index") is not None:
        keywords["subset_by_index"] = ex.literal(plain(eq.params["subset_by_index"]))
    return ex.call("lax.linalg.eigh", w.typed(eq.inputs[0]), **keywords)


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


def _svd_jax(w: Writer, eq: Equation) -> Expr:
    """Reorder the results of ``lax.linalg.svd`` (u, s, vh) as the primitive's (s, u, vh)."""
    keywords = {name: str(bool(eq.params[name])) for name in ("full_matrices", "compute_uv")}
    svd = ex.call("lax.linalg.svd", w.typed(eq.inputs[0]), **keywords)
    if len(eq.outputs) == 1:
        return Expr(svd.text, svd.level, eq.shape, svd.depth)
    names = [w.names.take(word) for word in ("u", "singular", "vh")]
    w.assign(names, svd)
    return ex.sequence([ex.name(names[place]) for place in (1, 0, 2)])


def _svd_numpy(w: Writer, eq: Equation) -> Expr:
    full = str(bool(eq.params["full_matrices"]))
    if len(eq.outputs) == 1:
        return ex.call("np.linalg.svd", w.typed(eq.inputs[0]), compute_uv="False", shape=eq.shape)
    names = [w.names.take(word) for word in ("u", "singular", "vh")]
    w.assign(names, ex.call("np.linalg.svd", w.typed(eq.inputs[0]), full_matrices=full))
    return ex.sequence([ex.name(names[place]) for place in (1, 0, 2)])


row("svd", jax=_svd_jax, numpy=_svd_numpy)


def _qr_numpy(w: Writer, eq: Equation) -> Expr:
    full = bool(eq.params["full_matrices"])
    if eq.params["pivoting"]:
        return ex.call(w.copy("pivoted_qr"), w.typed(eq.inputs[0]), str(full))
    keywords = {"mode": '"complete"'} if full else {}
    return ex.call("np.linalg.qr", w.typed(eq.inputs[0]), **keywords)


def _qr_jax(w: Writer, eq: Equation) -> Expr:
    keywords = {"full_matrices": str(bool(eq.params["full_matrices"]))}
    if eq.params["pivoting"]:
        keywords["pivoting"] = "True"
    return ex.call("lax.linalg.qr", w.typed(eq.inputs[0]), **keywords)


row("qr", jax=_qr_jax, numpy=_qr_numpy)
row("geqrf", numpy=_copied_function("householder"))
row("householder_product", jax=_jax("householder_product"), numpy=_copied_function("householder_product"))

row("hessenberg", jax=_jax("hessenberg"), numpy=_copied_function("hessenberg"))
row("cholesky_update", jax=_jax("cholesky_update"), numpy=_copied_function("cholesky_update"))
row("tridiagonal", jax=_jax("tridiagonal", "lower"))
row("ormqr", jax=_jax("ormqr", "left", "transpose"))


def _schur(w: Writer, eq: Equation) -> Expr:
    vectors = str(bool(eq.params["compute_schur_vectors"]))
    if w.target == "jax":
        schur = ex.call("lax.linalg.schur", w.typed(eq.inputs[0]), compute_schur_vectors=vectors)
    else:
        schur = ex.call(w.copy("schur"), w.typed(eq.inputs[0]), vectors)
    return schur if len(eq.outputs) > 1 else ex.index(schur, "0", eq.shape)


row("schur", jax=_schur, numpy=_schur)


def _eig(w: Writer, eq: Equation) -> Expr:
    left, right = (str(bool(eq.params[f"compute_{side}_eigenvectors"])) for side in ("left", "right"))
    if w.target == "jax":
        eigen = ex.call(
            "lax.linalg.eig", w.typed(eq.inputs[0]), compute_left_eigenvectors=left, compute_right_eigenvectors=right
        )
    else:
        eigen = ex.call(w.copy("eig"), w.typed(eq.inputs[0]), left, right)
    return eigen if len(eq.outputs) > 1 else ex.index(eigen, "0", eq.shape)


row("eig", jax=_eig, numpy=_eig)
row("tridiagonal_solve", jax=_jax("tridiagonal_solve"), numpy=_copied_function("tridiagonal_solve"))


def _symmetric_product(w: Writer, eq: Equation) -> Expr:
    a, c = (w.typed(atom) for atom in eq.inputs)
    alpha, beta = (ex.raw(repr(float(eq.params[name]))) for name in ("alpha", "beta"))
    product = ex.binary("*", alpha, ex.binary("@", a, ex.attribute(a, "mT")))
    return ex.binary("+", product, ex.binary("*", beta, c), eq.shape)


row("symmetric_product", jax=_symmetric_product, numpy=_symmetric_product)


def _fft(w: Writer, eq: Equation) -> Expr:
    kind = eq.params["fft_type"]
    kind = getattr(kind, "name", None) or ("FFT", "IFFT", "RFFT", "IRFFT")[int(kind)]
    lengths = plain(eq.params["fft_lengths"])
    operand, rank = w.typed(eq.inputs[0]), len(eq.shape)
    word = kind.lower()
    if w.target == "jax" and kind == "IRFFT":  # jax.numpy's first pads and truncates
        return ex.call("lax.fft", operand, "lax.FftType.IRFFT", ex.literal(lengths), shape=eq.shape)
    if len(lengths) == 1:
        sizes = [str(lengths[0])] if kind == "IRFFT" else []
        return ex.call(f"{w.xp}.fft.{word}", operand, *sizes, shape=eq.shape)
    axes = ex.literal(tuple(range(rank - len(lengths), rank)))
    keywords: dict[str, Expr | str] = {"s": ex.literal(lengths)} if kind == "IRFFT" else {}
    return ex.call(f"{w.xp}.fft.{word}n", operand, **keywords, axes=axes, shape=eq.shape)


row("fft", jax=_fft, numpy=_fft)
