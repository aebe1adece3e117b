"""Servers of language models that others wrote: llama.cpp's with a tiny model, and LiteLLM's proxy before it.

They need packages that the project does not install: `.ci/model-servers` installs them, and names their
Python in MODEL_SERVERS_PYTHON.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nats_servers import free_ports

PYTHON = os.environ.get("MODEL_SERVERS_PYTHON", "")
PROGRAMS = Path(__file__).parents[1] / "model_servers"
MODEL = "tiny"


@contextmanager
def llama_server(directory: Path, *, context: int) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run llama.cpp's server with a context of so many tokens; yields its URL and its process."""
    model = directory / "tiny.gguf"
    subprocess.run([PYTHON, PROGRAMS / "tiny_model.py.txt", model], check=True)
    (port,) = free_ports(1)
    command = [PYTHON, str(PROGRAMS / "llama_server.py.txt"), str(model), str(port), str(context)]
    with _running(command, directory / "llama.log", until="http://") as process:
        yield f"http://127.0.0.1:{port}", process


@contextmanager
def litellm_proxy(directory: Path, server: str) -> Iterator[str]:
    """Run LiteLLM's proxy before a server that speaks chat completions; yields its URL."""
    (port,) = free_ports(1)
    target = {"model": f"openai/{MODEL}", "api_base": f"{server}/v1", "api_key": "none"}
    config = directory / "litellm.yaml"
    config.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": target}]}))
    program = str(Path(PYTHON).with_name("litellm"))
    command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with _running(command, directory / "litellm.log", until="Uvicorn running"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _running(command: Sequence[str], log: Path, *, until: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program until the block ends; it begins when a line of the output contains a text."""
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    open_proxy = {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
    with (
        log.open("w") as written,
        subprocess.Popen(
            ["sh", "-c", 'exec "$@" 2>&1', "sh", *command],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | offline | open_proxy,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                written.write(line)
                if until in line:
                    break
            else:
                raise AssertionError(f"{command} has ended; see {log}")
            yield process
        finally:
            process.kill()
