"""Compression: smaller messages, and with which strategies they compose."""

from anyk.compression.schemes import (
    QSGD,
    Compressor,
    Half,
    Key,
    Payload,
    RandomK,
    Sign,
    TopK,
    compressor,
    register,
    registry,
)

__all__ = [
    "QSGD",
    "Compressor",
    "Half",
    "Key",
    "Payload",
    "RandomK",
    "Sign",
    "TopK",
    "compressor",
    "register",
    "registry",
]
