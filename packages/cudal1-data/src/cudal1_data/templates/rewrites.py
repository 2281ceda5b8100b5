"""Programs that keep the reference as it is and let PyTorch run it another way. They fit every task."""

from __future__ import annotations

COMPILE_MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs")
"""What `torch.compile` may be asked for."""


def plain_program(source: str) -> str:
    """Return the reference itself as a candidate: a speedup of 1."""
    return f"{source.rstrip()}\n\n\nclass ModelNew(Model):\n    pass\n"


def compiled_program(source: str, mode: str, *, dynamic: bool = False) -> str:
    """Return the reference under `torch.compile`.

    Args:
        source: The reference.
        mode: One of `COMPILE_MODES`.
        dynamic: Whether sizes are left open.
    """
    arguments = f"mode={mode!r}, dynamic={dynamic}"
    return (
        f"{source.rstrip()}\n\n\nclass ModelNew(Model):\n"
        "    def __init__(self, *arguments):\n        super().__init__(*arguments)\n"
        f"        self.compiled = torch.compile(super().forward, {arguments})\n\n"
        "    def forward(self, *inputs):\n        return self.compiled(*inputs)\n"
    )


def channels_last_program(source: str) -> str:
    """Return the reference with images and weights laid out channels last: convolutions then need no transposition."""
    return (
        f"{source.rstrip()}\n\n\nclass ModelNew(Model):\n    laid_out = False\n\n"
        "    def forward(self, *inputs):\n        if not self.laid_out:\n"
        "            self.to(memory_format=torch.channels_last)\n            self.laid_out = True\n"
        "        moved = [\n"
        "            x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x\n"
        "            for x in inputs\n        ]\n"
        "        result = super().forward(*moved)\n"
        "        return result.contiguous() if isinstance(result, torch.Tensor) else result\n"
    )
