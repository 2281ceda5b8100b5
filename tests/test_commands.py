"""The three commands: fast help with examples, nearest names, exit codes, messages on Ctrl-C."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from cudal1_agent.cli import Evaluate, Folder, Train
from cudal1_agent.config import load_settings
from cudal1_agent.errors import ConfigError
from cudal1_agent.optimize.command import Optimize
from cudal1_data import commandline
from cudal1_data.cli import main as data_main
from cudal1_env.baselines import resolve
from cudal1_env.commands.audit import Audit
from cudal1_env.commands.redteam import Redteam
from cudal1_env.commands.sweep import Sweep
from cudal1_env.commands.verify import Verify
from cudal1_env.exemplars import exemplars_by_name
from cudal1_env.sandbox import require_layers

COMMANDS = {
    "cudal1_data": [
        *("list", "show", "export", "overlaps", "trace", "tags", "corpus"),
        *("corpus build", "corpus verify", "corpus stats", "corpus merge", "corpus export"),
    ],
    "cudal1_env": ["evaluate", "sweep", "verify", "audit", "redteam", "replay", "serve", "doctor"],
    "cudal1_agent": ["train", "evaluate", "optimize", "report", "watch", "model make", "model fetch"],
}
HEAVY = {
    *("torch", "transformers", "trl", "datasets", "peft", "scipy", "pyarrow", "matplotlib", "httpx"),
    *("numpy", "gymnasium", "pydantic"),  # each takes 0.1 to 0.5 s of the 0.7 s that `--help` may take
}
GROUPED = 10
"""A command with at least this many options shows them in groups."""


@functools.cache
def help_texts(package: str) -> tuple[dict[str, str], list[str]]:
    """Return the `--help` text of each command of a package, and the heavy modules that it imported."""
    code = f"""
import contextlib, io, json, sys
from {package}.cli import main
found = {{}}
for words in ["", *{COMMANDS[package]}]:
    sys.argv = ["command", *words.split(), "--help"]
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main()
    found[words] = text.getvalue()
print(json.dumps([found, sorted({HEAVY} & sys.modules.keys())]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    found, heavy = json.loads(done.stdout)
    return found, heavy


@pytest.mark.parametrize("package", COMMANDS)
def test_help_imports_nothing_heavy_and_each_command_shows_an_example(package: str) -> None:
    found, heavy = help_texts(package)
    assert heavy == []
    assert {words.split()[0] for words in COMMANDS[package]} <= set(re.findall(r"[\w-]+", found[""]))
    name = package.replace("_", "-")
    for command in COMMANDS[package]:
        assert re.search(rf"Example: {name} {command}\b", found[command]), command


@pytest.mark.parametrize("package", COMMANDS)
def test_positional_arguments_are_named_after_what_they_are(package: str) -> None:
    for command, text in help_texts(package)[0].items():
        section = re.search(r"positional arguments .*?\n(.*?)\n\W*\n", text, re.DOTALL)
        assert section is None or not re.search(r"\b(STR|PATH)\b", section[1]), command


@pytest.mark.parametrize("package", COMMANDS)
def test_commands_with_many_options_show_them_in_groups(package: str) -> None:
    for command, text in help_texts(package)[0].items():
        options = set(re.findall(r"^\W? (--[a-z][\w-]*)", text, re.MULTILINE))
        groups = re.findall(r"^\W+ (\w+ options) \W+$", text, re.MULTILINE)
        assert len(options) < GROUPED or len(groups) >= 2, command


@pytest.mark.parametrize("package", COMMANDS)
def test_each_package_is_a_command_of_python(package: str) -> None:
    done = subprocess.run([sys.executable, "-m", package, "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: {package.replace('_', '-')} ")


def test_the_table_of_exit_codes_is_the_one_that_commands_use(repository: Path) -> None:
    table = (repository / "docs" / "commands.md").read_text().split("## Exit codes", 1)[1].split("##", 1)[0]
    told = [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)]
    used = [value for name, value in vars(commandline).items() if name.isupper() and isinstance(value, int)]
    assert told == sorted(used)


def test_the_table_of_json_names_exactly_the_commands_that_have_the_option(repository: Path) -> None:
    section = (repository / "docs" / "commands.md").read_text().split("## JSON", 1)[1].split("##", 1)[0]
    rows = re.findall(r"^\| `(cudal1-\w+) (.+?)` \|", section, re.MULTILINE)
    told = {f"{program} {name}" for program, names in rows for name in names.replace("`", "").split(", ")}
    have = {
        f"{package.replace('_', '-')} {command}"
        for package in COMMANDS
        for command, text in help_texts(package)[0].items()
        if re.search(r"^\W? --json", text, re.MULTILINE)
    }
    assert told == have


@dataclass(frozen=True)
class Ends:
    """A command that ends with an exception."""

    error: BaseException
    json: bool = False

    def run(self) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("no such file x; name another"), commandline.USER_ERROR, "program: no such file x; name another"),
        (KeyError("own"), commandline.OWN_FAULT, "KeyError: 'own'"),
        (KeyboardInterrupt(), commandline.INTERRUPTED, "interrupted; nothing was saved"),
    ],
)
def test_each_way_to_end_has_its_code_and_its_words(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str
) -> None:
    assert commandline.finished("program", Ends(error), (ValueError,)) == code
    assert said in capsys.readouterr().err


def test_with_json_an_error_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    commandline.finished("program", Ends(ValueError("no"), json=True), (ValueError,))
    assert json.loads(capsys.readouterr().out) == {"error": "ValueError", "message": "no"}


def test_with_json_an_argument_that_cannot_be_parsed_is_an_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cudal1-data", "corpus", "build", "x.jsonl", "--device", "gpus", "--json"])
    with pytest.raises(SystemExit) as ended:
        data_main()
    assert ended.value.code == commandline.USER_ERROR
    found = json.loads(capsys.readouterr().out)
    assert found["error"] == "ArgumentError"
    assert "invalid choice 'gpus'" in found["message"]


def test_a_reader_who_has_seen_enough_ends_a_command_without_a_word() -> None:
    command = [sys.executable, "-m", "cudal1_data", "show", "starter/diag_matmul", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(timeout=60)) == ("", commandline.OK)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_full_disk_under_standard_output_is_a_user_error_and_no_finding(options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "cudal1_data", "list", "starter", *options]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == commandline.USER_ERROR
    assert done.stderr.startswith("cudal1-data: [Errno 28] No space left on device\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("program", ["cudal1_data", "cudal1_env", "cudal1_agent"])
def test_help_on_a_full_disk_is_a_user_error(program: str) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", program, "--help"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    said = "cannot write to standard output: No space left on device; redirect it elsewhere\n"
    assert (done.returncode, done.stderr) == (commandline.USER_ERROR, said)


def test_a_broken_pipe_that_is_not_standard_output_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert commandline.finished("program", Ends(BrokenPipeError("worker")), (OSError,)) == commandline.USER_ERROR
    assert "program: worker" in capfd.readouterr().err


SAVING = [
    (Train(folder=Folder(run_dir=Path("r"))), "nothing was saved; type the command again"),
    (Optimize(file="m.py", out=Path("o")), "what was judged is in o"),
    (Sweep(file=Path("f.jsonl")), "the verdicts so far are in f.sweep.jsonl; the same command resumes"),
    (Verify(corpus=Path("c"), out=Path("v.jsonl")), "the verdicts so far are in v.jsonl; the same command resumes"),
    (Audit(suite="starter", out=Path("a.json")), "the verdicts so far are in a.json"),
    (Evaluate("run"), "nothing was saved; with --out FOLDER the same command continues from there"),
    (Evaluate("run", out=Path("o")), "answers and verdicts so far are in o; the same command continues from there"),
    (Audit(suite="starter"), "nothing was saved; with --out FILE"),
    (Redteam(out=Path("r.jsonl")), "the verdicts so far are in r.jsonl"),
]


@pytest.mark.parametrize(("command", "said"), SAVING, ids=lambda value: type(value).__name__)
def test_ctrl_c_says_what_was_saved_and_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: commandline.Command, said: str
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(command), "run", interrupted)
    assert commandline.finished("program", command, ()) == commandline.INTERRUPTED
    assert said in capsys.readouterr().err


def test_a_mistyped_task_suite_or_choice_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert data_main(["show", "diag_matmul"]) == 2
    assert "did you mean starter/diag_matmul" in capsys.readouterr().err
    assert data_main(["list", "startr"]) == 2
    assert "did you mean starter" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        data_main(["show", "starter/diag_matmul", "--device", "cdua"])
    assert capsys.readouterr().err.endswith("did you mean cuda?\n")


def test_mistyped_names_of_the_library_are_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown exemplar rule 'buckt'; did you mean 'bucket'"):
        exemplars_by_name("buckt")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="unknown baseline 'compil'; did you mean 'compile'"):
        resolve(["compil"], "cpu")
    with pytest.raises(Exception, match="unknown sandbox layer 'secomp'; did you mean 'seccomp'"):
        require_layers(["secomp"], {})
    config = tmp_path / "c.toml"
    config.write_text("[contrast]\narmm = 'bucket'\n")
    with pytest.raises(ConfigError, match=r"contrast.armm: no such setting; did you mean 'arm'"):
        load_settings(config)


def test_a_byte_order_mark_is_no_part_of_a_program(tmp_path: Path) -> None:
    from cudal1_env.cli import read_program

    path = tmp_path / "marked.py"
    path.write_text("class ModelNew: ...\n", encoding="utf-8-sig")
    assert read_program(path) == "class ModelNew: ...\n"
