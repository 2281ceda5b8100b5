"""Generated tasks: families of structures as programs in KernelBench's form. Docs: docs/generated.md."""

from cudal1_data.generator.families import FAMILIES
from cudal1_data.generator.make import make_task
from cudal1_data.generator.request import Request, curriculum, parse_name, parse_request, tag_of

__all__ = ["FAMILIES", "Request", "curriculum", "make_task", "parse_name", "parse_request", "tag_of"]
