"""The taskset as a module for verifiers to import by name; see `cudal1_env.adapters.verifiers`.

cudal1-env serve &
PYTHONPATH=examples vf-validate cudal1_taskset --taskset.url http://127.0.0.1:8011 --taskset.max-tasks 2 \
        --runtime.type subprocess
"""

from cudal1_env.adapters.verifiers import CudaTaskset

__all__ = ["CudaTaskset"]
