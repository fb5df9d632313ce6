"""Attributes that an object is made with."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from anyk.base.errors import BadInput

Value = TypeVar("Value")


class MadeWith(Generic[Value]):
    """An attribute that is set while an object is made, and refused afterwards, as more depends on it by then.

    ``argument``: the argument that determines the attribute, if it is another.

    >>> class Circle:
    ...     radius = MadeWith()
    ...     def __init__(self, radius):
    ...         self.radius, self._area = radius, 3.14 * radius**2
    >>> circle = Circle(2.0)
    >>> circle.radius = 3.0
    Traceback (most recent call last):
    anyk.base.errors.BadInput: radius of a Circle cannot be changed; make a new one with another radius
    >>> circle.radius
    2.0
    """

    def __init__(self, argument: str = "") -> None:
        self._argument = argument

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Value:
        if instance is None or self._name not in vars(instance):
            raise AttributeError(f"there is no {self._name} before an object is made")
        value: Value = vars(instance)[self._name]
        return value

    def __set__(self, instance: Any, value: Value) -> None:
        if self._name in vars(instance):
            raise BadInput(
                f"{self._name} of a {type(instance).__name__} cannot be changed; make a new one with another "
                f"{self._argument or self._name}"
            )
        vars(instance)[self._name] = value
