"""The workspace: wheels that work without it, and rules for every committed file."""

from __future__ import annotations

import ast
import email
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "cudal1-data": ["cudal1_data"],
    "cudal1-env": ["cudal1_env", "cudal1_worker"],
    "cudal1-agent": ["cudal1_agent"],
}
MAX_STATEMENTS = 320
"""Limit for a module. It counts statements, not lines, so that denser lines gain nothing."""
MAX_FUNCTION_STATEMENTS = 45

# A folder of one machine: anything below a home folder, and this checkout's folder.
MACHINE_PATH = re.compile(r"(?<![\w.*}-])/(?:home/\w+|Users/\w+|root/\w+|work/\w+)")
# A file on a package registry, or a registry's host; brackets keep this line from finding itself.
DOWNLOAD = re.compile(
    r"https?://[^\s\"']*(?:/simple\b|/packages/|[.]whl|[.]tgz|[.]tar[.]gz|/debian\b)"
    r"|[p]ythonhosted|[p]ypi[.]org|[n]pmjs[.](?:org|com)|deb[.]debian[.]org"
)


def tracked(*suffixes: str) -> list[Path]:
    """Return the committed files with one of the suffixes; without suffixes, all."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a git checkout")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = [ROOT / name for name in names.split("\0") if name]
    return [path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes)]


def text_of(path: Path) -> str | None:
    """Return a file's text, or None for a file without text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def findings(pattern: re.Pattern[str]) -> list[str]:
    """Return `file:line: match` for every match in a committed text file."""
    found: list[str] = []
    for path in tracked():
        for number, line in enumerate((text_of(path) or "").splitlines(), start=1):
            found += [f"{path.relative_to(ROOT)}:{number}: {match[0]}" for match in pattern.finditer(line)]
    return found


def uv(*words: str, cwd: Path = ROOT) -> str:
    """Run uv and return its output; skip the test if uv or the network is missing."""
    program = shutil.which("uv")
    if program is None:
        pytest.skip("needs uv on PATH")
    environment = {
        name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")
    }
    done = subprocess.run(
        [program, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    if done.returncode != 0 and re.search(
        r"dns error|error sending request|network (?:is )?unreachable", done.stderr, re.I
    ):
        pytest.skip(f"needs a network or a warm cache: uv {words[0]} said {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, f"uv {' '.join(words)} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each package."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--all-packages", "--wheel", "--out-dir", str(folder))
    return {path.name.split("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}


def test_there_is_one_wheel_for_each_package(wheels: dict[str, Path]) -> None:
    assert set(wheels) == set(PACKAGES)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_wheel_holds_every_file_of_its_package(wheels: dict[str, Path], name: str) -> None:
    with zipfile.ZipFile(wheels[name]) as archive:
        names = set(archive.namelist())
    source = ROOT / "packages" / name / "src"
    expected = {path.relative_to(source).as_posix() for path in tracked() if path.is_relative_to(source)}
    assert expected
    assert expected - names == set()
    assert {entry.split("/")[0] for entry in names if ".dist-info/" not in entry} == set(PACKAGES[name])
    assert {entry.rpartition("/")[2] for entry in names if ".dist-info/licenses/" in entry} == {"LICENSE", "NOTICE"}


@pytest.mark.parametrize("name", PACKAGES)
def test_the_metadata_of_a_wheel_is_complete(wheels: dict[str, Path], name: str) -> None:
    with zipfile.ZipFile(wheels[name]) as archive:
        place = next(entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA"))
        found = email.message_from_bytes(archive.read(place))
        assert all(f"{package}/py.typed" in archive.namelist() for package in PACKAGES[name])
    assert found["Name"] == name
    assert found["License-Expression"] == "Apache-2.0"
    assert set(found.get_all("License-File", [])) == {"LICENSE", "NOTICE"}
    assert found["Requires-Python"] == "<3.14,>=3.11"
    assert found["Summary"]
    assert found["Keywords"]
    assert found["Description-Content-Type"] == "text/markdown"
    assert len(str(found.get_payload())) > 500
    classifiers = set(found.get_all("Classifier", []))
    assert "Typing :: Typed" in classifiers
    assert {f"Programming Language :: Python :: {version}" for version in ("3.11", "3.12", "3.13")} <= classifiers


@pytest.mark.parametrize("name", PACKAGES)
def test_the_notice_of_a_package_names_the_licence_of_each_folder_of_data(name: str) -> None:
    notice = (ROOT / "packages" / name / "NOTICE").read_text()
    source = ROOT / "packages" / name / "src"
    inside = (path.relative_to(source).as_posix() for path in tracked() if path.is_relative_to(source))
    data = [path for path in inside if not path.endswith((".py", "py.typed", ".html", "/g++", "/nvcc"))]
    named = re.findall(r"^(cudal1_\S+)$", notice, re.MULTILINE)
    assert [path for path in data if not path.startswith(tuple(named))] == []
    assert all((source / path).exists() or path == "cudal1_env/testing/exploits" for path in named)
    assert notice.count("Apache-2.0") >= len(named)


def test_the_wheel_of_the_environment_holds_the_exploits(wheels: dict[str, Path]) -> None:
    source = ROOT / "tests" / "exploits"
    expected = {path.relative_to(source).as_posix(): path for path in tracked() if path.is_relative_to(source)}
    assert expected
    with zipfile.ZipFile(wheels["cudal1-env"]) as archive:
        inside = "cudal1_env/testing/exploits/"
        assert {name.removeprefix(inside) for name in archive.namelist() if name.startswith(inside)} == set(expected)
        assert all(archive.read(inside + name) == path.read_bytes() for name, path in expected.items())


@pytest.fixture(scope="module")
def clean(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of programs of a virtual environment outside the workspace, with the wheels installed."""
    folder = tmp_path_factory.mktemp("clean")
    uv("venv", "--quiet", "--python", sys.executable, str(folder / "venv"), cwd=folder)
    uv(
        "pip", "install", "--quiet", "--python", str(folder / "venv"), "--constraint", str(ROOT / "requirements.lock"),
        *(str(path) for path in wheels.values()), cwd=folder,
    )  # fmt: skip
    return folder / "venv" / "bin"


def outside(program: Path, *words: str, cwd: Path) -> str:
    """Run a program of the clean environment without access to the workspace."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "UV_"))
    }
    done = subprocess.run(
        [str(program), *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{program.name} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_packages_are_imported_from_the_wheels(clean: Path, tmp_path: Path) -> None:
    code = "import cudal1_agent, cudal1_data, cudal1_env, cudal1_worker as w; print(cudal1_data.__file__, w.__file__)"
    for path in outside(clean / "python", "-c", code, cwd=tmp_path).split():
        assert Path(path).is_relative_to(clean.parent)


@pytest.mark.slow
def test_the_example_agent_passes_with_the_wheels(clean: Path, tmp_path: Path) -> None:
    example = ROOT / "examples" / "random_agent.py"
    shutil.copy(example, tmp_path)
    assert outside(clean / "python", "random_agent.py", cwd=tmp_path).strip() != ""


@pytest.mark.slow
def test_the_exploits_and_their_tasks_are_found_in_the_wheel(clean: Path, tmp_path: Path) -> None:
    code = "from cudal1_env.testing.programs import programs; print(*[one.path for one in programs() if one.task()])"
    paths = [Path(word) for word in outside(clean / "python", "-c", code, cwd=tmp_path).split()]
    programs = [path for place in ("h*.py", "cuda/h*.py") for path in (ROOT / "tests" / "exploits").glob(place)]
    assert sorted(path.name for path in paths) == sorted(path.name for path in programs)
    assert all(path.is_relative_to(clean.parent) for path in paths)


NOSY = """
import glob, sys

own = [path for top in sys.path for path in glob.glob(top + "/cudal1_*") if not path.endswith(".dist-info")]
raise ValueError({path.rpartition("/")[2]: len(glob.glob(path + "/*")) for path in own})
"""


@pytest.mark.slow
def test_candidates_find_no_files_of_our_wheels_but_the_workers(clean: Path, tmp_path: Path) -> None:
    (tmp_path / "nosy.py").write_text(NOSY)
    words = ("evaluate", "starter/diag_matmul", "nosy.py", "--device", "cpu", "--precision", "training", "--json")
    record = json.loads(outside(clean / "cudal1-env", *words, cwd=tmp_path))
    if "mount-namespace" in record["sandbox_missing"]:
        pytest.skip("needs the sandbox layer mount-namespace")
    found = ast.literal_eval(record["message"][record["message"].index("{") : record["message"].index("}") + 1])
    assert found.pop("cudal1_worker") > 0
    assert found == {"cudal1_data": 0, "cudal1_env": 0, "cudal1_agent": 0}


@pytest.mark.slow
@pytest.mark.parametrize("command", PACKAGES)
def test_the_commands_of_the_wheels_answer(clean: Path, tmp_path: Path, command: str) -> None:
    assert command in outside(clean / command, "--help", cwd=tmp_path)


def test_all_distributions_carry_the_same_version_and_licence() -> None:
    projects = [ROOT / "pyproject.toml", *ROOT.glob("packages/*/pyproject.toml")]
    versions = {tomllib.loads(path.read_text())["project"]["version"] for path in projects}
    assert len(projects) == 4
    assert len(versions) == 1
    assert {path.read_bytes() for path in ROOT.glob("packages/*/LICENSE")} == {(ROOT / "LICENSE").read_bytes()}


def statements(node: ast.AST) -> int:
    """Count the statements inside a module or function, without documentation."""
    inside = (one for one in ast.walk(node) if isinstance(one, ast.stmt) and one is not node)
    return sum(not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)) for one in inside)


def modules() -> list[Path]:
    return [path for path in tracked(".py") if path.is_relative_to(ROOT / "packages")]


def test_no_module_and_no_function_holds_too_many_statements() -> None:
    long: list[str] = []
    for path in modules():
        tree = ast.parse(path.read_text())
        where = path.relative_to(ROOT)
        if (count := statements(tree)) > MAX_STATEMENTS:
            long.append(f"{where}: {count}")
        functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        long += [f"{where}:{one.name}" for one in functions if statements(one) > MAX_FUNCTION_STATEMENTS]
    assert long == []


def test_code_is_ascii() -> None:
    assert [str(path.relative_to(ROOT)) for path in tracked(".py", ".toml") if not path.read_bytes().isascii()] == []


def test_no_path_of_one_machine_is_committed() -> None:
    assert findings(MACHINE_PATH) == []


def test_no_download_address_is_committed() -> None:
    assert findings(DOWNLOAD) == []


def test_the_patterns_match_their_examples() -> None:
    assert MACHINE_PATH.search("see /" + "home/ann/cudal1/run")
    assert not MACHINE_PATH.search("packages/home/x and ../work/x")
    assert DOWNLOAD.search("from https:" + "//a.b/x/y-1.0-py3-none-any.whl")
    assert not DOWNLOAD.search("see https:" + "//a.b/docs/packages.html")


def test_the_worker_imports_only_the_standard_library_torch_numpy_and_the_driver() -> None:
    allowed = set(sys.stdlib_module_names) | {"torch", "numpy", "cudal1_worker", "cuda"}
    found: list[str] = []
    for path in modules():
        if "cudal1_worker" not in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            found += [f"{path.relative_to(ROOT)}: {name}" for name in names if name.split(".")[0] not in allowed]
    assert found == []
