"""Source text as a value that can be shown, saved, edited, compiled, and recognised by its digest."""

from __future__ import annotations

import ast
import hashlib
import html
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from readjax.errors import ReadJaxError


@dataclass(frozen=True, slots=True)
class Source:
    """Python source of a function: the last function of the text, after everything that it needs.

    >>> source = Source("import numpy as np\\n\\n\\ndef double(x):\\n    return 2 * np.asarray(x)\\n")
    >>> source.function()(4)
    np.int64(8)
    >>> Source(source.text.replace("2 *", "3 *")).function()(4)
    np.int64(12)
    """

    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def digest(self) -> str:
        """SHA-256 of the text, in hexadecimal, by which a receiver recognises the text that was sent.

        >>> Source("x = 1").digest[:8]
        '8ff436de'
        """
        return hashlib.sha256(self.text.encode()).hexdigest()

    def function(self) -> Callable[..., Any]:
        """Compile the text and return its last function.

        Tracebacks and :func:`inspect.getsource` show its lines. Raises :class:`~readjax.ReadJaxError` when the text is
        not Python, defines no function, or raises an error.
        """
        try:
            tree = ast.parse(self.text)
        except (SyntaxError, ValueError) as error:
            raise ReadJaxError(f"the source is not Python ({error})") from None
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        if not names:
            raise ReadJaxError("the source defines no function; its last function is the one that is run")
        file = f"<decompiled {self.digest[:12]}>"
        space: dict[str, Any] = {"__name__": "decompiled", "__file__": file}
        lines = self.text.splitlines(keepends=True)
        linecache.cache[file] = (len(self.text), None, lines, file)
        try:
            exec(compile(tree, file, "exec"), space)
        except Exception as error:
            raise ReadJaxError(f"the source cannot be run: {type(error).__name__}: {error}") from error
        function: Callable[..., Any] = space[names[-1]]
        return function

    def save(self, path: str | Path) -> Path:
        """Write the text to a file and return its path.

        Raises :class:`~readjax.ReadJaxError` when it cannot be written.
        """
        file = Path(path)
        try:
            file.write_text(self.text, encoding="utf-8")
        except OSError as error:
            raise ReadJaxError(f"the file '{path}' cannot be written ({error.strerror})") from None
        return file

    def _repr_markdown_(self) -> str:
        return f"```python\n{self.text}```\n"

    def _repr_html_(self) -> str:
        return f'<pre><code class="language-python">{html.escape(self.text)}</code></pre>'


def compile_source(text: str, digest: str) -> Callable[..., Any]:
    """Compile a source text that was received, and return its last function.

    ``digest`` is :attr:`Source.digest`, received by a way that is trusted. Needs neither JAX nor a file. Raises
    :class:`~readjax.ReadJaxError` when the text has another digest, or this machine's NumPy is older than 2 (its
    scalars have other types), and as :meth:`Source.function` does.

    >>> text = "def add(x, y):\\n    return x + y\\n"
    >>> compile_source(text, Source(text).digest)(1, 2)
    3
    >>> compile_source(text.replace("+", "-"), Source(text).digest)
    Traceback (most recent call last):
    ...
    readjax.errors.ReadJaxError: the source has digest ..., not ...: it is not what was sent, and is not run
    """
    source = Source(text)
    if source.digest != digest:
        raise ReadJaxError(
            f"the source has digest {source.digest[:12]}…, not {digest[:12]}…: it is not what was sent, and is not run"
        )
    if int(np.__version__.partition(".")[0]) < 2:
        raise ReadJaxError(
            f"decompiled source needs NumPy 2 or newer, this is {np.__version__}; run: pip install 'numpy>=2'"
        )
    return source.function()
