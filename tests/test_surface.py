"""Commands, specs and public members are those of tests/surface.txt; ``python tests/surface.py --write`` renews it."""

from surface import difference


def test_the_public_surface_is_as_it_was_written_down():
    assert not difference()
