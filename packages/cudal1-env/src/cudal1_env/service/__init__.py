"""HTTP service: one process that owns a host's GPUs; `cudal1_env.remote` is its client."""
