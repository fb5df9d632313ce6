"""Products with sums, sums, extremes, running sums, sorting."""

from __future__ import annotations

from readjax import expressions as ex
from readjax.equations import Equation
from readjax.expressions import Expr
from readjax.primitives.rules import axes, bundle, extreme, parameter, plain, row, rows
from readjax.writing import Rule, Writer

_Axes = tuple[tuple[int, ...], tuple[int, ...]]  # of the first and of the second operand
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@rows("dot_general")
def _product(w: Writer, eq: Equation) -> Expr:
    """Write a matrix product with ``@``, other products with ``einsum``."""
    a, b = w.arguments(eq)
    first, second = (atom.dtype for atom in eq.inputs)
    dtype = eq.params.get("preferred_element_type")
    dtype = eq.dtype if dtype is None else str(dtype)
    keywords: dict[str, Expr | str] = {}
    if w.target == "jax":
        keywords |= precision_keyword(eq)
    if w.target == "numpy" or (dtype != first and first != second):
        a, b = (
            expr if atom.dtype == dtype else w.cast(expr, dtype) for expr, atom in zip((a, b), eq.inputs, strict=True)
        )
    elif dtype != first:
        keywords["preferred_element_type"] = w.dtype(dtype)
    over, batch = plain(eq.params["dimension_numbers"])
    product = None if keywords else _matmul(a, b, over, batch, eq.shape)
    return product or _einsum(w, eq, a, b, over, batch, keywords)


def precision_keyword(eq: Equation) -> dict[str, Expr]:
    """Return the precision of a product, unless it is the default."""
    precision = eq.params.get("precision")
    if precision is None:
        return {}
    if not isinstance(precision, tuple):
        return {"precision": _precision_text(precision)}
    sides = [_precision_text(side) for side in precision]
    return {"precision": sides[0] if len(set(map(str, sides))) == 1 else ex.sequence(sides)}


def _precision_text(precision: object) -> Expr:
    return ex.raw(f"lax.Precision.{precision.name}") if hasattr(precision, "name") else ex.literal(precision)


def _matmul(a: Expr, b: Expr, over: _Axes, batch: _Axes, shape: tuple[int, ...]) -> Expr | None:
    """Return the product with ``@`` if it is a matrix product."""
    count = len(batch[0])
    ranks = len(a.shape) - count, len(b.shape) - count
    if batch[0] != tuple(range(count)) or batch[1] != batch[0] or len(over[0]) != 1:
        if not over[0] and not count and ranks == (1, 1):
            return ex.binary("*", ex.index(a, ":, None"), b, shape)
        return None
    if count and ranks != (2, 2):
        return None
    axis_a, axis_b = over[0][0] - count, over[1][0] - count
    if (ranks == (1, 2) and axis_b == 1) or (ranks == (2, 1) and axis_a == 0):
        return ex.binary("@", b, a, shape)
    transpose = "mT" if count else "T"
    if ranks == (2, 2) and axis_a == 0:
        a, axis_a = ex.attribute(a, transpose), 1
    if axis_a != ranks[0] - 1 or ranks[1] > 2:
        return None
    return ex.binary("@", a, ex.attribute(b, transpose) if axis_b else b, shape)


def _einsum(
    w: Writer, eq: Equation, a: Expr, b: Expr, over: _Axes, batch: _Axes, keywords: dict[str, Expr | str]
) -> Expr:
    letters = iter(_LETTERS)
    first = {axis: next(letters) for axis in range(len(a.shape))}
    shared = {axis_b: first[axis_a] for axis_a, axis_b in zip(over[0] + batch[0], over[1] + batch[1], strict=True)}
    second = {axis: shared.get(axis) or next(letters) for axis in range(len(b.shape))}
    free = [letter for axis, letter in first.items() if axis not in over[0] + batch[0]]
    free += [letter for axis, letter in second.items() if axis not in shared]
    result = "".join([first[axis] for axis in batch[0]] + free)
    terms = f"{''.join(first.values())},{''.join(second.values())}"
    if w.target == "numpy" and over[0]:
        keywords["optimize"] = "True"  # by BLAS if possible
    return ex.call(f"{w.xp}.einsum", f'"{terms}->{result}"', a, b, shape=eq.shape, **keywords)


def _reduction(function: str) -> Rule:
    def rule(w: Writer, eq: Equation) -> Expr:
        operand, over = w.typed(eq.inputs[0]), tuple(eq.params["axes"])
        keywords: dict[str, Expr | str] = {}
        if len(over) != len(operand.shape):
            keywords["axis"] = axes(over)
        kind = eq.dtype
        if function in ("sum", "prod"):
            if w.target == "numpy" and kind.startswith(("int", "uint", "bool")):
                keywords["dtype"] = w.dtype(kind)
        elif any(operand.shape[axis] == 0 for axis in over):
            initial = extreme(kind, function == "max", w.xp)
            # a bare number would have to fit int32
            keywords["initial"] = f"{w.dtype(kind)}({initial})" if kind.startswith("uint") else initial
        return ex.call(f"{w.xp}.{function}", operand, shape=eq.shape, **keywords)

    return rule


for _name, _called in {"reduce_sum": "sum", "reduce_prod": "prod", "reduce_max": "max", "reduce_min": "min"}.items():
    row(_name, jax=_reduction(_called), numpy=_reduction(_called))


def _bitwise(function: str, logical: str | None) -> Rule:
    def rule(w: Writer, eq: Equation) -> Expr:
        over = eq.params["axes"]
        if eq.dtype == "bool" and logical:
            some = len(over) != len(eq.inputs[0].shape)
            return w.call(eq, f"{w.xp}.{logical}", **({"axis": axes(over)} if some else {}))
        if w.target == "jax":
            return w.call(eq, f"lax.reduce_{function}", parameter(eq, "axes"))
        return w.call(eq, f"np.bitwise_{function}.reduce", axis=parameter(eq, "axes"))

    return rule


row("reduce_and", jax=_bitwise("and", "all"), numpy=_bitwise("and", "all"))
row("reduce_or", jax=_bitwise("or", "any"), numpy=_bitwise("or", "any"))
row("reduce_xor", jax=_bitwise("xor", None), numpy=_bitwise("xor", None))


def _place(function: str) -> Rule:
    def rule(w: Writer, eq: Equation) -> Expr:
        axis, dtype = str(int(eq.params["axes"][0])), w.dtype(eq.dtype)
        if w.target == "jax":
            return w.call(eq, f"lax.{function}", axis, dtype)
        return ex.method(w.call(eq, f"np.{function}", axis=axis), "astype", dtype, shape=eq.shape)

    return rule


row("argmax", jax=_place("argmax"), numpy=_place("argmax"))
row("argmin", jax=_place("argmin"), numpy=_place("argmin"))


def _running(function: str) -> tuple[Rule, Rule]:
    ufunc = {
        "cummax": "np.maximum.accumulate",
        "cummin": "np.minimum.accumulate",
        "cumlogsumexp": "np.logaddexp.accumulate",
    }.get(function)

    def for_jax(w: Writer, eq: Equation) -> Expr:
        keywords = {"reverse": "True"} if eq.params["reverse"] else {}
        return w.call(eq, f"lax.{function}", axis=parameter(eq, "axis"), **keywords)

    def for_numpy(w: Writer, eq: Equation) -> Expr:
        operand, axis = w.typed(eq.inputs[0]), int(eq.params["axis"])
        back = ", ".join([":"] * axis + ["::-1"])
        if eq.params["reverse"]:
            operand = ex.index(operand, back)
        extra = [] if ufunc else [w.dtype(eq.dtype)]
        running = ex.call(ufunc or f"np.{function}", operand, str(axis), *extra, shape=eq.shape)
        return ex.index(running, back, eq.shape) if eq.params["reverse"] else running

    return for_jax, for_numpy


for _name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
    _jax, _numpy = _running(_name)
    row(_name, jax=_jax, numpy=_numpy)


def _sort_jax(w: Writer, eq: Equation) -> Expr:
    keywords = {"dimension": parameter(eq, "dimension")}
    if not eq.params["is_stable"]:
        keywords["is_stable"] = ex.raw("False")
    if len(eq.inputs) == 1:
        return w.call(eq, "lax.sort", **keywords)
    if eq.params["num_keys"] != 1:
        keywords["num_keys"] = parameter(eq, "num_keys")
    return ex.call("lax.sort", ex.sequence(w.arguments(eq)), **keywords)


def _sort_numpy(w: Writer, eq: Equation) -> Expr:
    axis = parameter(eq, "dimension")
    if len(eq.inputs) == 1:
        return w.call(eq, "np.sort", axis)
    return ex.call(w.copy("sort_together"), ex.sequence(w.arguments(eq)), axis, parameter(eq, "num_keys"))


row("sort", jax=_sort_jax, numpy=_sort_numpy)


def _top_k(w: Writer, eq: Equation) -> Expr:
    last = len(eq.inputs[0].shape) - 1
    axis, k = int(eq.params.get("axis", last)), parameter(eq, "k")
    if w.target == "numpy":
        return w.call(eq, w.copy("top_k"), k, str(axis))
    return w.call(eq, "lax.top_k", k, **({} if axis == last else {"axis": str(axis)}))


row("top_k", jax=_top_k, numpy=_top_k)


def _approximate_top_k(w: Writer, eq: Equation) -> Expr:
    """Write a search that is approximate on accelerators only; NumPy's is exact."""
    axis, k = parameter(eq, "reduction_dimension"), parameter(eq, "k")
    largest = eq.params["is_max_k"]
    if w.target == "jax":
        name = "lax.approx_max_k" if largest else "lax.approx_min_k"
        return w.call(eq, name, k, reduction_dimension=axis, recall_target=parameter(eq, "recall_target"))
    if largest:
        return w.call(eq, w.copy("top_k"), k, axis)
    top = ex.call(w.copy("top_k"), ex.unary("-", w.typed(eq.inputs[0])), k, axis)
    w.assign(names := [w.names.take("least"), w.names.take("places")], top)
    return ex.sequence([ex.unary("-", ex.name(names[0])), ex.name(names[1])])


row("approx_top_k", jax=_approximate_top_k, numpy=_approximate_top_k)


def _reduce(w: Writer, eq: Equation) -> None:
    """Write a reduction by the user's own function: a loop over slices, or ``lax.reduce``."""
    if w.target == "jax":
        reduce_jax(w, eq, "lax.reduce", parameter(eq, "dimensions"))
        return
    (block,) = eq.blocks
    count = len(eq.inputs) // 2
    over = tuple(int(axis) for axis in eq.params["dimensions"])
    operands, starts = [w.named(a) for a in eq.inputs[:count]], [w.named(a) for a in eq.inputs[count:]]
    rank = len(eq.inputs[0].shape)
    order = tuple(axis for axis in range(rank) if axis not in over)
    flat = []
    for operand in operands:
        transposed = ex.call("np.transpose", operand, ex.literal((*over, *order)))
        name = w.names.take("slices")
        w.emit(f"{name} = ", ex.method(transposed, "reshape", "-1", *map(str, eq.shape)))
        flat.append(name)
    targets = [w.target_of(eq, place) for place in range(count)]
    for target, start in zip(targets, starts, strict=True):
        w.emit(f"{target} = ", start)
    elements = [w.names.take("element") for _ in flat]
    heads = ", ".join(elements)
    several = flat[0] if count == 1 else f"zip({', '.join(flat)})"
    w.line(f"for {heads} in {several}:")
    with w.indented():
        for value, name in zip(block.inputs, [*targets, *elements], strict=True):
            w.values[value] = ex.name(name, value.shape)
        w.body(block.equations)
        w.emit(f"{', '.join(targets)} = ", ex.side_by_side([w.typed(a) for a in block.outputs]))


def reduce_jax(w: Writer, eq: Equation, function: str, *extra: Expr, **keywords: Expr | str) -> None:
    """Write a reduction by the user's own function with one of ``lax``."""
    half = len(eq.inputs) // 2
    operands = [w.named(a) for a in eq.inputs]
    name = _combination(w, eq)
    bundles = [bundle(operands[:half]), bundle(operands[half:])]
    targets = [w.target_of(eq, place) for place in range(half)]
    w.emit(f"{', '.join(targets)} = ", ex.call(function, *bundles, name, *extra, **keywords))


def _combination(w: Writer, eq: Equation) -> str:
    """Define the function that combines two elements, and return its name."""
    (block,) = eq.blocks
    name = w.names.take("combine")
    half = len(block.inputs) // 2
    parameters = [w.names.take("x" if k < half else "y") for k in range(2 * half)]

    def write() -> None:
        for value, operand in zip(block.inputs, parameters, strict=True):
            w.values[value] = ex.name(operand, value.shape)
        w.write_block(block)

    if half == 1:
        w.define(name, parameters, write)
    else:

        def unpack() -> None:
            w.line(f"{', '.join(parameters[:half])} = {name}_left")
            w.line(f"{', '.join(parameters[half:])} = {name}_right")
            write()

        w.define(name, [f"{name}_left", f"{name}_right"], unpack)
    return name


row("reduce", jax=_reduce, numpy=_reduce)
