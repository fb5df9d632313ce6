"""Code that runs code from outside the program is confined to the files that are named here, each with its source."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

import anyk

pytestmark = pytest.mark.in_process

PACKAGE = Path(anyk.__file__).parent
UNPICKLES = {
    "clusters/nodes/slices.py": "optimisers from the driver, over an encrypted connection",
    "clusters/ray/actor.py": "orders of the driver, over Ray",
    "clusters/ray/holder.py": "orders of the driver, over Ray",
    "clusters/remote/shipping.py": "partitions from the driver",
    "problems/data/reader_processes.py": "work from the driver that started this process",
    "problems/jax/model_loss.py": "problems from the driver",
    "problems/separate_copy.py": "a copy of the user's object, made in the same process",
    "problems/torch/tensor_samples.py": "items that the driver has pickled",
    "testing/problems.py": "a copy of the problem that is checked",
}
IMPORTS = {
    "__init__.py": "names of anyk itself",
    "cli/lists.py": "registries of anyk itself",
    "clusters/nodes/compiler.py": "PyTorch's compiler",
    "clusters/processes/forkserver.py": "modules that the driver has imported",
    "base/installed.py": "plug-ins and commands of installed distributions",
    "base/named.py": "code that the user names, from folders only with trust",
    "base/registries.py": "registries of anyk itself",
    "optimizers/library_classes.py": "optimisers that the user names",
    "optimizers/torch_optimizers.py": "PyTorch",
    "optimizers/torch_groups.py": "PyTorch",
    "problems/data/built_in.py": "packages that data sets need",
    "testing/__init__.py": "names of anyk itself",
    "views/exports/log_tables.py": "packages that formats need",
}
RUNS = {"base/named.py": "code that the user names"}
UNPICKLING = {"load", "loads", "Unpickler"}
PICKLES = {"pickle", "cloudpickle", "marshal", "shelve", "joblib", "dill", "torch"}
IMPORTING = {"import_module", "__import__", "spec_from_file_location", "run_path", "run_module"}
RUNNING = {"eval", "exec", "compile"}


def calls(tree: ast.AST) -> list[tuple[str, str, ast.Call]]:
    """Return the calls in a file, each as the name of the object, empty for a bare name, and of the function."""
    named = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name):
                named.append(("", function.id, node))
            elif isinstance(function, ast.Attribute):
                owner = function.value
                named.append((owner.id if isinstance(owner, ast.Name) else "?", function.attr, node))
    return named


@functools.cache
def called() -> list[tuple[str, str, str, ast.Call]]:
    """Return the calls of the whole package, each with its file."""
    return [
        (str(file.relative_to(PACKAGE)), *call)
        for file in PACKAGE.rglob("*.py")
        for call in calls(ast.parse(file.read_text(encoding="utf-8")))
    ]


@functools.cache
def attributes() -> list[tuple[str, str, str]]:
    """Return the attributes of names in the whole package, also of functions that are passed on, each with its file."""
    return [
        (str(file.relative_to(PACKAGE)), node.value.id, node.attr)
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]


def using(owners: set[str], names: set[str]) -> set[str]:
    """Return the files that call one of these functions of one of these objects."""
    return {file for file, owner, name, _ in called() if owner in owners and name in names}


@pytest.mark.slow
def test_only_bytes_of_the_own_program_are_unpickled() -> None:
    passed_on = {file for file, owner, name in attributes() if owner in PICKLES and name in UNPICKLING}
    assert passed_on | using({""}, {"Unpickler"}) == set(UNPICKLES)


@pytest.mark.slow(always=True)
def test_modules_are_imported_only_if_user_or_driver_name_them() -> None:
    assert using({"", "importlib", "util", "runpy"}, IMPORTING) == set(IMPORTS)


def test_code_is_run_from_files_that_the_user_names_only() -> None:
    assert using({""}, RUNNING) == set(RUNS)


def test_arrays_are_read_without_pickle() -> None:
    """NumPy refuses pickles unless it is told otherwise."""
    keywords = [(file, keyword) for file, _, _, call in called() for keyword in call.keywords]
    passed = [(file, keyword.value) for file, keyword in keywords if keyword.arg == "allow_pickle"]
    assert passed and all(isinstance(value, ast.Constant) and value.value is False for _, value in passed)
