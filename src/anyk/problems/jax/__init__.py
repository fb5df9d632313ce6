"""JAX problems: any loss of a pytree of parameters or of a module."""
