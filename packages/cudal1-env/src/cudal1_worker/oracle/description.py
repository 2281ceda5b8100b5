"""I/O specification of a task: its inputs, state and outputs, and which of them are the same in each call."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from cudal1_worker import layout
from cudal1_worker import protocol as wire
from cudal1_worker.oracle import distributions, inputs
from cudal1_worker.oracle.models import aliases, as_dtype, kept_state, same_bits, unregistered
from cudal1_worker.program import state
from cudal1_worker.program.module import Failure

if TYPE_CHECKING:
    from cudal1_worker.oracle.oracle import Oracle

_AGREE = 1e-9
"""Maximum difference between float64 answers of models with the same state, over their scale."""


def describe(oracle: Oracle, message: wire.Message, fds: list[int]) -> wire.Message:
    """Return the I/O specification of the task: inputs, arguments, state and outputs; refuse what cannot be judged."""
    assert oracle.module is not None
    arguments = layout.encode(oracle.module.get_init_inputs())
    seed = message["seed"]
    plain, other_model = oracle.fresh_model(seed), oracle.fresh_model(seed ^ 1)
    reseeded, elsewhere = state.tensors(other_model), unregistered(other_model)
    fixed = [
        name
        for name, value in state.tensors(plain).items()
        if distributions.is_fixed(value, reseeded[name], parameter=isinstance(value, torch.nn.Parameter))
    ]
    kept = unregistered(plain) | {name: value for name, value in state.tensors(plain).items() if name in fixed}
    seeded = [name for name, value in kept.items() if not inputs.alike(value, (elsewhere | reseeded).get(name))]
    with torch.no_grad():
        for name in reseeded.keys() - {*fixed}:
            reseeded[name].copy_(state.tensors(plain)[name])
    del reseeded, elsewhere
    values = oracle.fresh_inputs(seed, "own")
    oracle.entries, size = layout.manifest(values)
    others = (oracle.fresh_inputs(seed ^ number, "own") for number in range(1, inputs.DRAWS))
    other = next(others)
    # Properties that two draws share; one draw of a tensor of two elements is not enough.
    natures = ([distributions.nature_of(value) for value in draw] for draw in (values, other))
    oracle.natures = [a & b for a, b in zip(*natures, strict=False)]
    constant = inputs.constant(values, itertools.chain([other], others))
    del other
    again = oracle.fresh_inputs(seed, "own")
    _check(
        inputs.all_alike(values, again),
        "get_inputs() must draw from generators that the judge seeds; two calls under one seed differ; draw by torch, "
        "random or numpy.random",
    )
    _check(
        not inputs.all_known(values, constant),
        "inputs must differ from call to call; all floating-point (or all) tensors of get_inputs() are the same under "
        "different seeds, so answers could be kept; draw them at random",
    )
    if oracle.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    first = oracle.run(plain, values)
    work = torch.cuda.max_memory_allocated() - before
    oracle.double = any(out.dtype == torch.float64 for out in first)
    oracle.models = oracle.trio([plain, *(oracle.fresh_model(seed) for _ in range(1 + oracle.double))])
    answers = oracle.exact(oracle.models.wide, again)
    others = oracle.exact(as_dtype(other_model, torch.float64), again)
    if not seeded and not inputs.all_alike(answers, others, _AGREE):
        seeded = ["what the constructor draws"]
    del other_model, answers, others
    if oracle.widened is not None and not oracle.widened.asked:
        oracle.widened = None
    torch.manual_seed(seed + 1)  # another generator state reveals dropout and other random operators
    _check(
        inputs.all_alike(first, oracle.run(plain, again)),
        "the output must be a function of the inputs; two calls on the same inputs differ, because the reference is "
        "random or counts its calls",
    )
    held = {name: value.clone() for name, value in kept_state(plain).items()}  # lazy state exists by now
    oracle.run(plain, oracle.fresh_inputs(seed ^ 1, "own"))
    changed = [name for name, one in kept_state(plain).items() if name not in held or not same_bits(one, held[name])]
    stateful = _read_again(oracle, plain, changed, again, first)
    _check(
        not stateful,
        f"the output must be a function of the inputs; it depends on {', '.join(stateful[:3])}, which each call "
        "changes; call eval() in the constructor",
    )
    return {
        "arguments": arguments,
        "state": state.described(plain, fixed),
        "entries": oracle.entries,
        "size_bytes": size,
        "work_bytes": work,
        "outputs": [_form(out, values) for out in first],
        "constant_inputs": constant,
        "seeded": seeded,
        "changed": changed,
    }


def _form(out: torch.Tensor, values: list[Any]) -> dict[str, Any]:
    """Return the form of an output, and whether it aliases an input."""
    return {
        "shape": list(out.shape),
        "dtype": str(out.dtype).removeprefix("torch."),
        "aliases": aliases(out, values),
        "strides": list(out.stride()),
    }


def _check(holds: bool, refusal: str) -> None:
    """Refuse the task unless something holds."""
    if not holds:
        raise Failure("task", refusal)


def _read_again(
    oracle: Oracle, model: Any, changed: Sequence[str], values: list[Any], outputs: Sequence[torch.Tensor]
) -> list[str]:
    """Return the floating-point state that calls change and that decides the outputs of the next call.

    Two calls may show too little of it: an iteration that refines a vector has nearly converged.
    """
    kept = kept_state(model)
    moved = [name for name in changed if kept[name].is_floating_point() and kept[name].is_contiguous()]
    if not moved:
        return []
    before = {name: kept[name].clone() for name in moved}
    with torch.no_grad():
        for name in moved:
            kept[name].copy_(1.5 * before[name] + 0.25)
        same = inputs.all_alike(outputs, oracle.run(model, values))
        for name in moved:
            kept[name].copy_(before[name])
    return [] if same else moved
