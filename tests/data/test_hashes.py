"""Skeletons: programs that differ in numbers, names, comments and layout only have one."""

from __future__ import annotations

import pytest
from cudal1_data.hashes import skeleton_hash

KERNEL = '''
import torch

SOURCE = r"""extern "C" {
// adds {number}
__global__ void __launch_bounds__({number}) {kernel}(const float* __restrict__ {value}, float* out, int n) {
    const unsigned int {place} = blockIdx.x * {number}u + threadIdx.x, last = n - 1;
    if ({place} <= last) out[{place}] = {function}({value}[{place}]);
}
}"""


class ModelNew(torch.nn.Module):
    def forward(self, x):  # {number}
        {result} = torch.empty_like(x)
        run = torch.cuda._compile_kernel(SOURCE, "{kernel}")
        run(grid=(x.numel() // {number}, 1, 1), args=[x, {result}, x.numel()])
        return {result}
'''


def kernel(**changed: str) -> str:
    text = KERNEL
    values = {"number": "64", "kernel": "fused", "value": "x_ptr", "place": "i", "function": "expf", "result": "y"}
    for name, value in {**values, **changed}.items():
        text = text.replace("{" + name + "}", value)
    return text


@pytest.mark.parametrize(
    "changed", [{"number": "128"}, {"value": "a"}, {"place": "index_2"}, {"result": "answer"}, {"kernel": "mine"}]
)
def test_a_kernel_keeps_its_skeleton_under_other_numbers_and_names(changed: dict[str, str]) -> None:
    assert skeleton_hash(kernel(**changed)) == skeleton_hash(kernel())


def test_another_function_of_a_library_and_another_operator_are_another_skeleton() -> None:
    assert skeleton_hash(kernel(function="tanhf")) != skeleton_hash(kernel())
    assert skeleton_hash(kernel().replace("<= last", "< last")) != skeleton_hash(kernel())


def test_names_that_trade_places_are_another_skeleton() -> None:
    assert skeleton_hash("def f(a, b): return a - b") == skeleton_hash("def f(b, a): return b - a")
    assert skeleton_hash("def f(a, b): return a - b") != skeleton_hash("def f(a, b): return b - a")


def test_what_is_no_python_has_its_numbers_masked() -> None:
    assert skeleton_hash("no (python 1") == skeleton_hash("no (python 22")
    assert skeleton_hash("no (python 1") != skeleton_hash("no (snake 1")


def test_comments_end_at_the_end_of_the_text_at_the_latest() -> None:
    assert skeleton_hash("k = 'f(a); /* one'") == skeleton_hash("k = 'f(a); /* /* two'")
    assert skeleton_hash("k = 'f(a); /* one'") != skeleton_hash("k = 'f(b); /* one'")
