"""Linear models and the two-layer network: their data, partitions and partial gradients in NumPy."""
