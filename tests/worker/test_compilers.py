"""The scripts that torch calls to compile an extension: what they keep, and when they use light headers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from cudal1_worker import compilers
from cudal1_worker.compilers import compile as compiling
from cudal1_worker.compilers import side_by_side
from torch.utils.cpp_extension import include_paths


def compile_with(
    name: str, folder: Path, source: Path, *flags: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Call a script of `compilers` as torch's ninja file does."""
    output = folder / f"{source.stem}.o"
    command = [
        f"{compilers.FOLDER}/{name}",
        *([] if name == "nvcc" else ["-MMD"]),
        "-MF",
        f"{output}.d",
        "-DTORCH_EXTENSION_NAME=one",
        *flags,
    ]
    given = {**os.environ, **compilers.settings(os.environ, str(folder)), **environment}
    return subprocess.run([*command, "-c", str(source), "-o", str(output)], env=given, capture_output=True, text=True)


@pytest.fixture
def counting(tmp_path: Path) -> tuple[str, Path]:
    """A compiler that counts its calls."""
    real, script, calls = shutil.which("c++"), tmp_path / "counting", tmp_path / "calls"
    assert real is not None
    script.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexec {real} "$@"\n')
    script.chmod(0o755)
    return str(script), calls


def test_a_text_is_compiled_once_whatever_it_is_called(tmp_path: Path, counting: tuple[str, Path]) -> None:
    compiler, calls = counting
    for number, name in enumerate(("a.cpp", "b.cpp")):
        (tmp_path / name).write_text("int one() { return 1; }\n")
        done = compile_with("g++", tmp_path, tmp_path / name, f"-DTORCH_EXTENSION_NAME=n{number}", CUDAL1_CXX=compiler)
        assert done.returncode == 0, done.stdout
    assert len(calls.read_text().splitlines()) == 1
    assert (tmp_path / "a.o").read_bytes() == (tmp_path / "b.o").read_bytes()
    assert (tmp_path / "b.o.d").read_text().startswith(str(tmp_path / "b.o"))
    done = compile_with("g++", tmp_path, tmp_path / "b.cpp", "-O2", CUDAL1_CXX=compiler)
    assert done.returncode == 0
    assert len(calls.read_text().splitlines()) == 2


def test_a_failure_is_told_with_torchs_headers_and_then_remembered(tmp_path: Path, counting: tuple[str, Path]) -> None:
    compiler, calls = counting
    (tmp_path / "a.cpp").write_text("int one() { return unknown; }\n")
    told = [compile_with("g++", tmp_path, tmp_path / "a.cpp", CUDAL1_CXX=compiler) for _ in range(2)]
    assert [one.returncode for one in told] == [1, 1]
    assert "unknown" in told[0].stdout
    assert told[0].stdout == told[1].stdout
    light, full = calls.read_text().splitlines()
    assert "/light" in light
    assert "/light" not in full


@pytest.mark.parametrize(
    "text", ['#include "own.h"\n', "#define A <own.h>\n#include A\n", "const char* when = __DATE__;\n"]
)
def test_a_text_that_depends_on_more_is_compiled_each_time(
    tmp_path: Path, counting: tuple[str, Path], text: str
) -> None:
    compiler, calls = counting
    (tmp_path / "own.h").write_text("")
    (tmp_path / "a.cpp").write_text(text)
    for _ in range(2):
        compile_with("g++", tmp_path, tmp_path / "a.cpp", "-isystem", str(tmp_path), CUDAL1_CXX=compiler)
    assert len(calls.read_text().splitlines()) == 2


def test_a_compiler_that_is_killed_is_called_again_and_its_build_not_kept(tmp_path: Path) -> None:
    script = tmp_path / "killed"
    script.write_text("#!/bin/sh\necho 'c++: fatal error: Killed signal terminated program cc1plus'\nexit 1\n")
    script.chmod(0o755)
    (tmp_path / "a.cpp").write_text("int one() { return 1; }\n")
    assert compile_with("g++", tmp_path, tmp_path / "a.cpp", CUDAL1_CXX=str(script)).returncode == 1
    assert (tmp_path / compilers.COMPILED / compilers.UNSETTLED).exists()
    assert compile_with("g++", tmp_path, tmp_path / "a.cpp").returncode == 0


def test_other_calls_of_the_compiler_are_passed_on() -> None:
    environment = {**os.environ, "CUDAL1_PYTHON": sys.executable}
    said = subprocess.run([f"{compilers.FOLDER}/g++", "-dumpversion"], env=environment, capture_output=True, text=True)
    assert said.stdout == subprocess.run(["c++", "-dumpversion"], capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("text", "light"),
    [
        ("torch::Tensor f(torch::Tensor x) { return torch::exp(x); }", True),
        ("auto y = at::var(x, 1);", False),
        ("using namespace torch;", False),
        ("torch::nn::Linear layer(1, 1);", False),
        ("TORCH_LIBRARY(a, m) {}", False),
    ],
)
def test_texts_that_mean_something_else_with_light_headers_get_torchs(tmp_path: Path, text: str, light: bool) -> None:
    (tmp_path / "ATen" / "ops").mkdir(parents=True)
    (tmp_path / "ATen" / "ops" / "exp.h").write_text("")
    (tmp_path / "a.cpp").write_text(text)
    arguments = ["-DTORCH_EXTENSION_NAME=a", "-isystem", str(tmp_path), "-c", str(tmp_path / "a.cpp"), "-o", "a.o"]
    call = compiling.parse(["c++"], arguments)
    assert call is not None
    flags = compiling.light_flags(call, str(tmp_path))
    assert (flags is not None) == light
    assert flags is None or flags[-2:] == ["-include", "ATen/ops/exp.h"]


EXTENSION = """#include <torch/extension.h>
#include <c10/core/DeviceGuard.h>

torch::Tensor both(const torch::Tensor& x, const std::vector<int64_t>& sizes) {
    TORCH_CHECK(x.dim() == 2, "two dimensions, not ", x.sizes());
    c10::OptionalDeviceGuard guard(at::device_of(x));
    auto options = torch::TensorOptions().dtype(x.dtype()).device(x.device());
    auto zeros = torch::zeros(sizes, options) + torch::full({1}, 0.5, options) * 2;
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "both", [&] { zeros.data_ptr<scalar_t>()[0] = 1; });
    return CALL;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("both", torch::wrap_pybind_function(both), "both");
    m.def("scaled", [](at::Tensor x, double by) { return x * by; }, py::arg("x"), py::arg("by") = 2.0);
}
"""


def flags_of_torch() -> list[str]:
    folders = [*include_paths(), sysconfig.get_path("include")]
    includes = [part for folder in folders for part in ("-isystem", folder)]
    return ["-DTORCH_API_INCLUDE_EXTENSION_H", *includes, "-fPIC", "-std=c++20"]


@pytest.mark.slow
@pytest.mark.parametrize(("call", "all_types"), [("torch::matmul(x, zeros)", False), ("at::cat({x, zeros}, 1)", True)])
def test_light_headers_suffice_for_an_extension(
    tmp_path: Path, counting: tuple[str, Path], call: str, all_types: bool
) -> None:
    compiler, calls = counting
    (tmp_path / "a.cpp").write_text(EXTENSION.replace("CALL", call))
    done = compile_with("g++", tmp_path, tmp_path / "a.cpp", *flags_of_torch(), CUDAL1_CXX=compiler)
    assert done.returncode == 0, done.stdout
    (light,) = calls.read_text().splitlines()
    assert "/light" in light
    assert ("CUDAL1_ALL_TYPES" in light) == all_types


@pytest.mark.slow
def test_precompiled_headers_are_used_with_the_flags_of_torch(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    maker = [sys.executable, "-P", "-m", "cudal1_worker.compilers.headers", str(made)]
    subprocess.run(maker, check=True, capture_output=True)
    for name, call, used in (("a", "torch::matmul(x, zeros)", True), ("b", "at::cat({x, zeros}, 1)", False)):
        (tmp_path / f"{name}.cpp").write_text(EXTENSION.replace("CALL", call))
        done = compile_with(
            "g++", tmp_path, tmp_path / f"{name}.cpp", *flags_of_torch(), "-H", CUDAL1_HEADERS=str(made)
        )
        assert done.returncode == 0, done.stdout
        assert (f"! {made}/{compilers.HEADER}.gch" in done.stdout) == used


def test_only_the_factories_that_a_text_names_are_declared() -> None:
    (header,) = (path for path in (Path(one) / compiling._FACTORIES for one in include_paths()) if path.exists())
    text = compiling.factories(header.read_text(), ["zeros", "exp"])
    operators = set(re.findall(r"<ATen/ops/(\w+)\.h>", text))
    assert operators == {"from_blob", "zeros"}
    declared = set(re.findall(r"^inline at::Tensor (\w+)\(", text, re.MULTILINE))
    assert declared == {"from_blob", "tensor", "zeros", "zeros_symint"}
    assert text.count("{") == text.count("}")


DRY_RUN = """#$ _HERE_=/cuda/bin
#$ CICC_PATH=/cuda/nvvm/bin
#$ gcc -D__CUDA_ARCH__=900 -E -x c++ "k.cu" -o "/t/k.cpp1.ii"
#$ gcc -E -x c++ "k.cu" -o "/t/k.cpp4.ii"
#$ cudafe++ --stub_file_name "k.stub.c" --gen_module_id_file --module_id_file_name "/t/k.module_id" "/t/k.cpp4.ii"
#$ "$CICC_PATH/cicc" -arch compute_90 --module_id_file_name "/t/k.module_id" "/t/k.cpp1.ii" -o "/t/k.ptx"
#$ ptxas -arch=sm_90 "/t/k.ptx" -o "/t/k.cubin"
#$ fatbinary "--image3=kind=elf,sm=90,file=/t/k.cubin" --embedded-fatbin="/t/k.fatbin.c"
#$ rm /t/k.fatbin
#$ gcc -c -x c++ "/t/k.cudafe1.cpp" -o "k.o"
"""


def test_nvccs_steps_are_parted_into_host_and_device() -> None:
    known = side_by_side.steps(DRY_RUN)
    assert known is not None
    assert known.variables == {"_HERE_": "/cuda/bin", "CICC_PATH": "/cuda/nvvm/bin"}
    assert known.module == "/t/k.module_id"
    assert [line.split()[0] for line in known.host] == ["gcc", "cudafe++"]
    assert "k.cpp4.ii" in known.host[0]
    assert "--gen_module_id_file" not in known.host[1]
    assert [line.split()[0] for line in known.device] == ["gcc", '"$CICC_PATH/cicc"', "ptxas", "fatbinary"]
    assert known.last == DRY_RUN.splitlines()[-1].removeprefix("#$ ")


@pytest.mark.parametrize("repeated", ["cudafe++", '"$CICC_PATH/cicc"'])
def test_other_steps_of_nvcc_are_left_to_nvcc(repeated: str) -> None:
    lines = DRY_RUN.splitlines()
    (one,) = (line for line in lines if line.startswith(f"#$ {repeated}"))
    assert side_by_side.steps("\n".join([*lines[:-1], one, lines[-1]])) is None
    assert side_by_side.steps("\n".join(line for line in lines if line != one)) is None
    assert side_by_side.steps(DRY_RUN.replace("--gen_module_id_file ", "")) is None


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_both_parts_at_once_make_what_nvcc_makes(tmp_path: Path) -> None:
    source = tmp_path / "k.cu"
    source.write_text(
        "static __device__ float offset;\n__global__ void add(float* y) { y[threadIdx.x] += offset; }\n"
        "void run(float* y) { add<<<1, 1>>>(y); }\n"
    )
    assert compile_with("nvcc", tmp_path, source, "-MD").returncode == 0
    subprocess.run(["nvcc", "-c", str(source), "-o", str(tmp_path / "stock.o")], check=True)
    symbols = [
        subprocess.run(["nm", str(tmp_path / name)], capture_output=True, text=True, check=True).stdout.split("\n")
        for name in ("k.o", "stock.o")
    ]
    assert len(symbols[0]) == len(symbols[1])
    source.write_text("__global__ void add(float* y) { y[0] = unknown; }\n")
    failed = compile_with("nvcc", tmp_path, source, "-MD")
    assert failed.returncode != 0
    assert failed.stdout.count("unknown") >= 1
