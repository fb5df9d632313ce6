"""Averaging: workers take local steps, and their models are averaged by the driver or among neighbours."""
