"""Compiles one source of an extension: from an earlier result, with light headers, or as torch would.

The scripts in this folder call `python -m cudal1_worker.compilers.compile g++|nvcc ARGUMENTS...` in the worker of the
program. Calls other than compilations by torch's `load_inline` or `load` are passed on unchanged.

Light headers (`light/`) declare only the operators that a source names instead of all 2,000. A source that does not
compile with them is compiled with torch's headers, whose messages are shown. A source with a name whose meaning differs
in light headers is compiled with torch's headers at once (`light_flags`).

Results are kept in the worker's build folder, including failures, because torch compiles a failed source again in each
process, and in any folder that the program chooses. The judge copies the build folder before it leases a device; only
later workers of the same program start with the copy.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cudal1_worker import compilers
from cudal1_worker.compilers import side_by_side

_DEPENDS = re.compile(rb"#\s*include\s*(?![<\s])|__has_include|__DATE__|__TIME__|__TIMESTAMP__|\.incbin|#\s*embed")
"""Marks a source that depends on the program's own files or on the time; its result is not reused."""
_OTHER_MEANING = re.compile(
    rb"\b(?:at|torch)\s*::\s*(?:std|var|std_mean|var_mean|numel|size|stride|is_\w+|_is_zerotensor|conj)\s*\("
    rb"|using\s+namespace\s+(?:at|torch)\b|namespace\s+\w+\s*=|TORCH_LIBRARY|AT_PER_OPERATOR_HEADERS"
    rb"|\btorch\s*::\s*(?:nn|optim|data|jit|autograd|serialize|python|linalg|fft|special|sparse|nested|Library)\s*::"
)
"""Functions that torch overloads in the header of all operators, and names from headers that are left out."""
_OPERATOR = re.compile(rb"\b(?:at|torch)\s*::\s*(\w+)\b(?!\s*::)")
_LIGHT = [f"-I{compilers.FOLDER}/light", "-DAT_PER_OPERATOR_HEADERS"]
_FACTORIES = "torch/csrc/autograd/generated/variable_factories.h"
_INCLUDED = re.compile(r"#include <ATen/ops/(\w+)\.h>")
_BINDINGS = re.compile(rb"PYBIND11|\bpy\s*::|pybind|THP|PyObject")
_ALL_TYPES = re.compile(rb"THP|PyObject|ListRef|IValue|\bc10\s*::\s*(?:List|Dict)\b")
"""Marks a text, or the header of an operator that a text names, that uses types of TorchScript."""
_NOT_THE_TEXT = re.compile(
    rb"internal compiler error|killed|no space left|cannot allocate|out of memory|virtual memory|resource temporarily"
    rb"|cannot fork|quota exceeded|too many open files|segmentation fault|signal terminated",
    re.IGNORECASE,
)
"""Messages of compilers that lack a resource. A failure with one in its output (even from the source) is not kept."""
_OWN_INCLUDE = re.compile(r"-I|-include|-iquote|-imacros|@")


@dataclass(frozen=True)
class Call:
    """A compilation: `COMPILER ... -c SOURCE -o OBJECT`."""

    compiler: list[str]
    arguments: Sequence[str]
    source: str
    output: str
    depfile: str | None
    text: bytes

    @property
    def is_nvcc(self) -> bool:
        """Whether it is nvcc's."""
        return os.path.basename(self.compiler[0]) == "nvcc"

    @property
    def key(self) -> str | None:
        """Hash of everything that the object depends on, except the toolchain; None if unknown.

        The names of source, object and dependency file are left out, and the extension's name if the source does not
        use it.
        """
        if _DEPENDS.search(self.text) or any(_OWN_INCLUDE.match(one) for one in self.arguments):
            return None
        named = b"TORCH_EXTENSION_NAME" in self.text
        skipped = {self.source, self.output, self.depfile}
        kept = [
            one
            for one in self.arguments
            if one not in skipped and (named or not one.startswith("-DTORCH_EXTENSION_NAME"))
        ]
        whole = "\0".join([*self.compiler, *kept]).encode(errors="surrogateescape") + b"\0" + self.text
        return hashlib.sha256(whole).hexdigest()


def parse(compiler: list[str], arguments: Sequence[str]) -> Call | None:
    """Return the compilation that torch requests; None for any other call."""
    if "-c" not in arguments or not any(one.startswith("-DTORCH_EXTENSION_NAME") for one in arguments):
        return None
    after = dict(pairwise(arguments))
    source, output = after.get("-c"), after.get("-o")
    if source is None or output is None:
        return None
    try:
        with open(source, "rb") as file:
            return Call(compiler, arguments, source, output, after.get("-MF"), file.read())
    except OSError:
        return None


def light_flags(call: Call, folder: str) -> list[str] | None:
    """Return the flags for compiling a source with light headers; None for a source that needs torch's.

    Args:
        call: The compilation.
        folder: Empty folder for a header with only the factories (`torch::empty`) that the source names.
    """
    if _OTHER_MEANING.search(call.text):
        return None
    includes = [one for flag, one in pairwise(call.arguments) if flag == "-isystem"]
    operators = sorted({name.decode() for name in _OPERATOR.findall(call.text)})
    texts, named = [call.text], list[str]()
    for name, include in itertools.product(operators, includes):
        with contextlib.suppress(OSError), open(f"{include}/ATen/ops/{name}.h", "rb") as file:
            texts.append(file.read())
            named += ["-include", f"ATen/ops/{name}.h"]
    light = _LIGHT.copy()
    if any(map(_ALL_TYPES.search, texts)):
        light.append("-DCUDAL1_ALL_TYPES")
    if _BINDINGS.search(call.text):
        light.append("-DCUDAL1_PYTHON_BINDINGS")
    header = f"{os.environ.get('CUDAL1_HEADERS')}/{compilers.HEADER}"
    if light == [*_LIGHT, "-DCUDAL1_PYTHON_BINDINGS"] and not call.is_nvcc and os.path.exists(f"{header}.gch"):
        return [*light, "-include", header, *named]
    for include in includes:
        with contextlib.suppress(OSError), open(f"{include}/{_FACTORIES}") as file:
            text = factories(file.read(), operators)
            os.makedirs(os.path.dirname(f"{folder}/{_FACTORIES}"))
            with open(f"{folder}/{_FACTORIES}", "w") as out:
                out.write(text)
    return [f"-I{folder}", *light, *named]


def precompile(call: Call, folder: str) -> None:
    """Make a header that g++ uses in later compilations; where their flags differ, it reads the header's text."""
    header = f"{folder}/{compilers.HEADER}"
    with open(header, "w") as file:
        file.write("#include <torch/extension.h>\n")
    skipped = {"-c", call.source, "-o", call.output, "-MMD", "-MF", call.depfile}
    kept = [one for one in call.arguments if one not in skipped and not one.startswith("-DTORCH_EXTENSION_NAME")]
    flags = [*_LIGHT, "-DCUDAL1_PYTHON_BINDINGS", *kept]
    _run([*call.compiler, *flags, "-x", "c++-header", header, "-o", f"{header}.gch"])


def factories(header: str, named: Collection[str]) -> str:
    """Return torch's header of factories without those that are generated from an operator that is not named."""
    kept = {*named, "from_blob"}  # which is not generated
    unnamed = "|".join(sorted(set(_INCLUDED.findall(header)) - kept))
    include = rf"#include <ATen/ops/(?:{unnamed})\.h>"
    function = rf"inline at::Tensor (?:{unnamed})(?:_symint)?\(.*\{{\n(?:  .*\n)*\}}"
    return re.sub(rf"^(?:{include}|{function})\n", "", header, flags=re.MULTILINE)


def compiled(call: Call) -> subprocess.CompletedProcess[bytes]:
    """Compile with light headers, if possible, or else with torch's."""
    with tempfile.TemporaryDirectory() as folder:
        light = light_flags(call, folder)
        if light is not None:
            done = _once(call, light)
            if done.returncode == 0:
                return done
    return _once(call, [])


def _once(call: Call, flags: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Compile with additional flags; run nvcc's host and device parts in parallel if possible."""
    if call.key is not None and "-MD" in call.arguments:  # torch calls nvcc with it
        skipped = {"-MD", "-MF", call.depfile}
        plain = [*call.compiler, *flags, *(one for one in call.arguments if one not in skipped)]
        done = side_by_side.compiled(plain, f"_{call.key[:32]}")
        if done is not None:
            _write_depfile(call)
            return done
    return _run([*call.compiler, *flags, *call.arguments])


def _write_depfile(call: Call) -> None:
    """Write that an object depends on its source only, because the toolchain's headers do not change meanwhile."""
    if call.depfile is not None:
        with open(call.depfile, "w") as file:
            file.write(f"{call.output}: {call.source}\n")


def _run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )


def main(name: str, arguments: Sequence[str]) -> int:
    """Compile as `name` would; return its exit code."""
    compiler = [os.environ.get("CUDAL1_CXX", "c++")] if name == "g++" else [_nvcc()]
    call = parse(compiler, arguments)
    if call is None:
        os.execvp(compiler[0], [*compiler, *arguments])
    if "CUDAL1_MAKE_HEADERS" in os.environ:
        precompile(call, os.environ["CUDAL1_MAKE_HEADERS"])
        return 1  # there is no object
    folder, key = os.environ.get("CUDAL1_COMPILED"), call.key
    kept = None if folder is None or key is None else os.path.join(folder, key)
    if kept is not None and (code := _from(kept, call)) is not None:
        return code
    done = compiled(call)
    _tell(done.stdout)
    if kept is not None:
        with contextlib.suppress(OSError):  # no space: compile again next time
            _keep(kept, call, done)
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def _from(kept: str, call: Call) -> int | None:
    """Use an earlier result; return its exit code, or None if there is none."""
    try:
        with open(f"{kept}/said", "rb") as file:
            said = file.read()
    except OSError:
        return None
    if not os.path.exists(f"{kept}/object"):
        _tell(said)
        return 1
    shutil.copyfile(f"{kept}/object", call.output)
    _write_depfile(call)
    _tell(said)
    return 0


def _keep(kept: str, call: Call, done: subprocess.CompletedProcess[bytes]) -> None:
    """Keep an object, or the messages of a failure that the source caused."""
    if done.returncode != 0 and (_NOT_THE_TEXT.search(done.stdout) or b"error" not in done.stdout):
        folder = os.path.dirname(kept)
        os.makedirs(folder, exist_ok=True)
        open(f"{folder}/{compilers.UNSETTLED}", "w").close()
        return
    aside = f"{kept}.{os.getpid()}"
    os.makedirs(aside)
    if done.returncode == 0:
        shutil.copyfile(call.output, f"{aside}/object")
    with open(f"{aside}/said", "wb") as file:
        file.write(done.stdout)
    os.rename(aside, kept)


def _tell(said: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(1, said)


def _nvcc() -> str:
    """Return the path of the nvcc that torch would call."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    found = None if home else shutil.which("nvcc")
    return f"{home}/bin/nvcc" if home else found or "/usr/local/cuda/bin/nvcc"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
