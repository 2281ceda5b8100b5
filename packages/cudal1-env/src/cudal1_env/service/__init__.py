"""One process that owns a host's GPUs and answers over HTTP; `cudal1_env.remote` is its client."""
