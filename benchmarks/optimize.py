"""`cudal1-agent optimize` on the modules of examples/optimize: with templates alone, and with a scripted endpoint.

    uv run benchmarks/optimize.py --out docs/results/optimize_cpu.jsonl
    uv run benchmarks/optimize.py --out OUT.jsonl --device cuda --sources templates

On a GPU the modules are larger (`GPU_SIZES`), because calls of the examples' sizes are too short there.

The endpoint is a server in this script. It answers requests with the device's programs in benchmarks/optimize_answers
and a text without a program, in turn; it ignores the prompt. The results file has a line for each command: its record.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULES = {"gated_block": "GatedBlock", "rotary_attention": "RotaryAttention", "focal_loss": "Model"}
"""Files of examples/optimize, with their classes."""
GPU_SIZES = {
    "gated_block": {"TOKENS": 8192, "WIDTH": 1024, "HIDDEN": 2816},
    "rotary_attention": {"BATCH": 8, "HEADS": 16, "LENGTH": 1024},
    "focal_loss": {"ROWS": 1 << 16},
}
"""Constants of the modules on a GPU."""


def answers_for(name: str, device: str) -> list[str]:
    """Return the endpoint's answers for a module on a device, in order."""
    programs = sorted((ROOT / "benchmarks" / "optimize_answers" / device).glob(f"{name}_*.py"))
    found = [f"## Code\n```python\n{path.read_text(encoding='utf-8')}```\n" for path in programs]
    return [*found, "I would fuse the loops."]


@contextmanager
def endpoint(answers: list[str]) -> Iterator[str]:
    """Serve answers in turn as chat completions; yield the address."""
    turn = count()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            message = {"role": "assistant", "content": answers[next(turn) % len(answers)]}
            body = json.dumps({"choices": [{"index": 0, "message": message}]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def module_of(name: str, folder: Path, device: str) -> Path:
    """Write a module with the sizes of a device; return the file."""
    text = (ROOT / "examples" / "optimize" / f"{name}.py").read_text(encoding="utf-8")
    for constant, value in GPU_SIZES[name].items() if device == "cuda" else ():
        text, count = re.subn(rf"^{constant} = .*$", f"{constant} = {value}", text, flags=re.MULTILINE)
        assert count == 1, constant
    (file := folder / f"{name}.py").write_text(text, encoding="utf-8")
    return file


def optimised(name: str, folder: Path, budget: str, device: str, url: str | None) -> dict[str, object]:
    """Run the command on one module; return its record."""
    file = module_of(name, folder, device)
    command = [sys.executable, "-m", "cudal1_agent", "optimize", f"{file}:{MODULES[name]}", "--json"]
    command += ["--budget", budget, "--out", str(folder / name), "--device", device]
    if url is not None:
        command += ["--url", url, "--model", "scripted"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(done.stdout) | {"exit_code": done.returncode}


def main() -> None:
    """Run all commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="results file, JSON lines")
    parser.add_argument("--budget", default="6m", help="time for each command")
    parser.add_argument("--modules", nargs="+", choices=MODULES, default=list(MODULES))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sources", nargs="+", choices=("templates", "endpoint"), default=["templates", "endpoint"])
    asked = parser.parse_args()
    for source in asked.sources:
        for name in asked.modules:
            with tempfile.TemporaryDirectory() as folder, endpoint(answers_for(name, asked.device)) as url:
                used = url if source == "endpoint" else None
                record = optimised(name, Path(folder), asked.budget, asked.device, used)
            print(f"{name}, {source}: {record.get('message')}", flush=True)
            with asked.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
