"""Devices as the judge uses them: memory that workers can map, reading outputs, names of leases, limits."""
