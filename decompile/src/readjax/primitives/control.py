"""Loops, conditionals and calls: written in Python for NumPy, with functions of ``lax`` for JAX."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from readjax import expressions as ex
from readjax.equations import Atom, Block, Equation, Variable
from readjax.expressions import Expr
from readjax.literals import short
from readjax.primitives.rules import bundle, parameter, row, rows
from readjax.variable_names import noun
from readjax.writing import Writer


@rows("call")
def _call(w: Writer, eq: Equation) -> Expr | None:
    assert eq.function is not None
    name = w.module.function(eq.function)
    return w.call(eq, name)


def _take_names(w: Writer, values: Sequence[Variable], wishes: Sequence[str]) -> list[str]:
    """Give names to a block's inputs, and return them."""
    names = []
    for value, wish in zip(values, wishes, strict=True):
        name = w.names.take(wish or value.called)
        w.values[value] = ex.name(name, value.shape)
        names.append(name)
    return names


def _loop_names(inner: Sequence[Variable], outer: Sequence[Variable], otherwise: str) -> list[str]:
    """Return names for a loop's variables: the user's names of its inputs or outputs."""
    return [
        inner_value.called
        if inner_value.called.isidentifier()
        else outer_value.called or inner_value.called or otherwise
        for inner_value, outer_value in zip(inner, outer, strict=True)
    ]


def _assign(w: Writer, names: Sequence[str], exprs: Sequence[Expr]) -> None:
    """Write simultaneous assignments."""
    if not names:
        return
    targets = ", ".join(names)
    if w.indent + len(targets) <= 50:
        w.emit(f"{targets} = ", ex.side_by_side(exprs))
        return
    new = w.names.take("new")
    w.emit(f"{new} = ", ex.sequence(exprs))
    for place, name in enumerate(names):
        w.line(f"{name} = {new}[{place}]")


# NumPy


def _changing(w: Writer, block: Block, start: Sequence[Atom], carries: int) -> list[int]:
    """Return the places of carried values that change; the others keep their values from the start."""
    changing = []
    for place in range(carries):
        if block.outputs[place] is block.inputs[place]:
            w.values[block.inputs[place]] = w.named(start[place])
        else:
            changing.append(place)
    return changing


def _name_stacked(eq: Equation, carries: int) -> None:
    """Name the arrays that a loop collects after their elements."""
    (block,) = eq.blocks
    for value, element in zip(eq.outputs[carries:], block.outputs[carries:], strict=True):
        if not value.called and isinstance(element, Variable) and element.maker is not None:
            value.called = (element.called or noun(element.maker, element.maker.outputs.index(element))) + "s"


def _scan_numpy(w: Writer, eq: Equation) -> None:
    (block,) = eq.blocks
    carries, length = eq.params["carries"], int(eq.params["length"])
    changing = _changing(w, block, eq.inputs, carries)
    wishes = _loop_names(block.inputs[:carries], eq.outputs[:carries], "state")
    names = _take_names(w, [block.inputs[place] for place in changing], [wishes[place] for place in changing])
    _assign(w, names, [w.typed(eq.inputs[place]) for place in changing])
    _name_stacked(eq, carries)
    stacked = [w.target_of(eq, place) for place in range(carries, len(eq.outputs))]
    for name, value in zip(stacked, eq.outputs[carries:], strict=True):
        empty = ex.call("np.empty", ex.literal(value.shape), w.dtype(value.dtype))
        w.emit(f"{name} = ", empty, comment=short(value.dtype, value.shape))
    step = w.names.take("step" if "t" in names else "t")
    count = f"range({length})"
    w.line(f"for {step} in {f'reversed({count})' if eq.params['reverse'] else count}:")
    with w.indented():
        mark = len(w.lines)
        for value, atom in zip(block.inputs[carries:], eq.inputs[carries:], strict=True):
            element = ex.index(w.named(atom), step, value.shape)
            if value.uses > 1 or value.called:
                name = w.names.take(value.called or "x")
                w.emit(f"{name} = ", element, comment=short(value.dtype, value.shape))
                element = ex.name(name, value.shape)
            w.values[value] = element
        w.body(block.equations)
        for name, atom in zip(stacked, block.outputs[carries:], strict=True):
            w.emit(f"{name}[{step}] = ", w.loose(atom))
        _assign(w, names, [w.typed(block.outputs[place]) for place in changing])
        if len(w.lines) == mark:
            w.line("pass")
    for place in range(carries):
        w.values[eq.outputs[place]] = w.values[block.inputs[place]]
    for place, name in zip(changing, names, strict=True):
        w.values[eq.outputs[place]] = ex.name(name, eq.outputs[place].shape)


def _while_numpy(w: Writer, eq: Equation) -> None:
    condition, body = eq.blocks
    changing = _changing(w, body, eq.inputs, len(eq.inputs))
    wishes = _loop_names(body.inputs, eq.outputs, "state")
    names = _take_names(w, [body.inputs[place] for place in changing], [wishes[place] for place in changing])
    for place, value in enumerate(condition.inputs):
        w.values[value] = w.values[body.inputs[place]]
    _assign(w, names, [w.typed(eq.inputs[place]) for place in changing])
    head = len(w.lines)
    with w.indented():
        w.body(condition.equations)
        test = w.loose(condition.outputs[0])
        if len(w.lines) == head:
            w.lines.insert(head, " " * (w.indent - 4) + f"while {test}:")
        else:
            w.lines.insert(head, " " * (w.indent - 4) + "while True:")
            w.line(f"if not {test.at(ex.COMPARE)}:")
            w.line("    break")
        w.body(body.equations)
        _assign(w, names, [w.typed(body.outputs[place]) for place in changing])
        if not changing:
            w.line("pass")
    for place, value in enumerate(eq.outputs):
        w.values[value] = w.values[body.inputs[place]]


def _cond_numpy(w: Writer, eq: Equation) -> None:
    selector = w.named(eq.inputs[0]) if len(eq.blocks) > 2 else w.typed(eq.inputs[0])
    w.pending.pop(eq.inputs[0], None)
    names = [w.target_of(eq, place) for place in range(len(eq.outputs))]
    blocks = list(enumerate(eq.blocks))
    if len(blocks) == 2 and eq.params.get("boolean"):
        heads = [f"if {selector}:", "else:"]
        blocks = blocks[::-1]
    else:
        place = selector.at(ex.SHIFT)
        heads = [f"{'elif' if k else 'if'} {place} <= {k}:" for k, _ in blocks]
        heads[-1] = "else:"
    for head, (_, block) in zip(heads, blocks, strict=True):
        w.line(head)
        with w.indented():
            w.body(block.equations)
            if names:
                _assign(w, names, [w.typed(a) for a in block.outputs])
            else:
                w.line("pass")


# JAX


def _unpack(w: Writer, names: Sequence[str], bundle: str) -> None:
    """Unpack a parameter of a nested function."""
    line = f"{', '.join(names)} = {bundle}"
    if w.indent + len(line) <= ex.WIDTH:
        w.line(line)
        return
    for place, name in enumerate(names):
        if name != "_":
            w.line(f"{name} = {bundle}[{place}]")


def _carried(names: Sequence[str], w: Writer) -> str:
    return names[0] if len(names) == 1 else w.names.take("carry")


def _scan_jax(w: Writer, eq: Equation) -> None:
    (block,) = eq.blocks
    carries = eq.params["carries"]
    wishes = _loop_names(block.inputs[:carries], eq.outputs[:carries], "state")
    starts, slices = eq.inputs[:carries], eq.inputs[carries:]
    start = bundle([w.typed(a) for a in starts])
    xs = bundle([w.typed(a) for a in slices]) if slices else ex.raw("None")
    _name_stacked(eq, carries)
    names = _take_names(w, block.inputs, [*wishes, *(value.called or "x" for value in block.inputs[carries:])])
    function = w.names.take("step")
    carry = _carried(names[:carries], w) if carries else "_"
    x = _carried(names[carries:], w) if slices else "_"

    def write() -> None:
        if carries > 1:
            _unpack(w, names[:carries], carry)
        if len(slices) > 1:
            _unpack(w, names[carries:], x)
        w.body(block.equations)
        outputs = [w.typed(a) for a in block.outputs]
        carried = bundle(outputs[:carries]) if carries else ex.raw("None")
        collected = bundle(outputs[carries:]) if outputs[carries:] else ex.raw("None")
        w.write_return([carried, collected])

    parameters = [carry, x] if carry != x else ["_", "__"]
    w.define(function, parameters, write)
    present = {"length": not slices, "reverse": eq.params["reverse"], "unroll": eq.params.get("unroll", 1) != 1}
    keywords = {name: parameter(eq, name) for name, is_present in present.items() if is_present}
    finals = [w.target_of(eq, place) for place in range(carries)]
    stacked = [w.target_of(eq, place) for place in range(carries, len(eq.outputs))]
    scan = ex.call("lax.scan", function, start if carries else ex.raw("None"), xs, **keywords)
    targets = f"{_group(finals)}, {_group(stacked)}"
    if w.indent + len(targets) <= 62:
        w.emit(f"{targets} = ", scan)
        return
    results = w.names.take("results")
    w.emit(f"{results} = ", scan)
    for side, group in enumerate((finals, stacked)):
        for place, name in enumerate(group):
            if name != "_":
                w.line(f"{name} = {results}[{side}]" + (f"[{place}]" if len(group) > 1 else ""))


def _group(names: Sequence[str]) -> str:
    if not names:
        return "_"
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _while_jax(w: Writer, eq: Equation) -> None:
    condition, body = eq.blocks
    wishes = _loop_names(body.inputs, eq.outputs, "state")
    start = bundle([w.typed(a) for a in eq.inputs])
    functions = []
    for block, wish in ((condition, "condition"), (body, "body")):
        names = _take_names(w, block.inputs, wishes)
        function = w.names.take(wish)
        carry = _carried(names, w)

        def write(block: Block = block, names: Sequence[str] = names, carry: str = carry) -> None:
            if len(names) > 1:
                used = [name if value.uses else "_" for name, value in zip(names, block.inputs, strict=True)]
                _unpack(w, used, carry)
            w.write_block(block)

        w.define(function, [carry], write)
        functions.append(function)
    loop = ex.call("lax.while_loop", *functions, start)
    targets = [w.target_of(eq, place) for place in range(len(eq.outputs))]
    _assign_results(w, targets, loop)


def _assign_results(w: Writer, targets: Sequence[str], expr: Expr) -> None:
    """Assign the result of a loop or conditional: one value, a tuple, or nothing."""
    if len(targets) == 1:
        w.emit(f"{targets[0]} = ", expr)
    elif targets:
        w.assign(targets, expr)


def _cond_jax(w: Writer, eq: Equation) -> None:
    selector = w.named(eq.inputs[0])
    boolean = len(eq.blocks) == 2 and eq.params.get("boolean")
    functions = []
    for place, block in enumerate(eq.blocks):
        function = w.names.take(("if_false", "if_true")[place] if boolean else f"case_{place}")

        w.define(function, [], partial(w.write_block, block))
        functions.append(function)
    if boolean:
        conditional = ex.call("lax.cond", selector, *functions[::-1])
    else:
        conditional = ex.call("lax.switch", selector, ex.sequence([ex.raw(function) for function in functions], "[]"))
    targets = [w.target_of(eq, place) for place in range(len(eq.outputs))]
    _assign_results(w, targets, conditional)


row("scan", jax=_scan_jax, numpy=_scan_numpy)
row("while", jax=_while_jax, numpy=_while_numpy)
row("cond", jax=_cond_jax, numpy=_cond_numpy)
