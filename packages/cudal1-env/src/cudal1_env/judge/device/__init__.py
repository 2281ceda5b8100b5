"""What the judge asks of a device: memory that workers can map, reading outputs, leases' names, limits."""
