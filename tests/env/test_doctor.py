"""The doctor says what brings a missing sandbox layer back."""

from __future__ import annotations

import pytest
from cudal1_env.doctor import Findings
from cudal1_env.records import Machine
from cudal1_env.sandbox import advice
from cudal1_env.stats import DEFAULT_SPREAD
from cudal1_worker.sandbox import LAYERS

MACHINE = Machine(device="cpu", name="CPU", cores=2, core=1, kernel="Linux 6", python="3.11", torch="2.13")


def findings(*missing: str) -> Findings:
    layers = {name: "Operation not permitted" if name in missing else None for name in LAYERS}
    return Findings(
        machine=MACHINE,
        device="cpu",
        gpu=None,
        layers=layers,
        attempts={},
        tools={},
        spread=DEFAULT_SPREAD,
        calibrated=False,
    )


@pytest.mark.parametrize("layer", LAYERS)
def test_each_missing_layer_comes_with_what_brings_it_back(layer: str) -> None:
    text = findings(layer).text()
    assert f"{layer:18s} MISSING: Operation not permitted" in text
    assert f"to bring back {layer}: " in text
    assert "--" in text.split("to bring back")[1] or "host:" in text.split("to bring back")[1]


def test_layers_that_one_flag_brings_back_share_a_line() -> None:
    (line,) = advice(["pid-namespace", "mount-namespace"])
    assert line.startswith("pid-namespace, mount-namespace: Docker: --security-opt")
    assert "rootless Podman" in line


def test_a_missing_compiler_is_named_as_what_is_installed() -> None:
    text = findings().model_copy(update={"tools": {"nvcc": None, "g++": "/usr/bin/g++"}}).text()
    assert "nvcc               missing: install NVIDIA's CUDA toolkit; programs" in text
    assert "g++                /usr/bin/g++" in text


def test_a_whole_sandbox_needs_no_advice() -> None:
    assert "to bring back" not in findings().text()
