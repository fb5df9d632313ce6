"""The items, a file each; a file here with an ``ITEM`` is one."""
