"""`hone gateway`"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hone.cli.errors import UsageError
from hone.cli.options import parameters_of
from hone.cli.servers import HostOption, run_server

if TYPE_CHECKING:
    from hone.launch.gateway import RunningGateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The command line of `hone gateway`."""

    engine: Annotated[
        str,
        typer.Option(
            metavar="URL|scripted:FILE",
            help="Engine server (http://host:8000), or a file of scripted replies.",
        ),
    ]
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free port.")
    ] = None
    socket: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Unix socket to listen on instead of a port.")
    ] = None
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER|NAME",
            help="Model with tokenizer and chat template: its folder, or its name on the hub.",
        ),
    ] = None
    kind: Annotated[Literal["vllm", "sglang"], typer.Option(help="Kind of the engine server.")] = "vllm"
    renderer: Annotated[str, typer.Option(metavar="NAME", help="Renderer of messages into tokens.")] = "auto"
    host: HostOption = "127.0.0.1"
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token that opens and reads sessions; without it, any local user can.",
        ),
    ] = None
    context_tokens: Annotated[
        int,
        typer.Option(min=1, help="Maximum length of prompt and reply together, in tokens."),
    ] = 131_072
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum length of a reply, in tokens.")] = 4096
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature.")] = 1.0
    calls: Annotated[int, typer.Option(min=0, help="Maximum replies of a session; 0: no limit.")] = 0
    tokens: Annotated[int, typer.Option(min=0, help="Maximum sampled tokens of a session; 0: no limit.")] = 0
    seconds: Annotated[
        float, typer.Option(min=0.0, help="Maximum duration of a session in seconds; 0: no limit.")
    ] = 0.0


@parameters_of(Flags)
def gateway(flags: Flags) -> None:
    """Serve a policy to command-line agents and record every token of their conversations.

    The APIs are OpenAI chat completions and responses, Anthropic messages and Google generateContent. The
    flags set the sampling; sampling parameters in requests are ignored. POST /sessions opens a session for
    one rollout, GET /sessions/ID/tree returns its tokens. SIGTERM or Ctrl-C stops the server.

    [bold]Example[/bold]: hone gateway --engine http://127.0.0.1:8000 --model models/qwen3 --port 8080

    [bold]Example[/bold]: hone gateway --engine scripted:session.jsonl --socket gateway.sock
    """
    if (flags.port is None) == (flags.socket is None):
        raise UsageError("give either --port or --socket")
    if not flags.engine.startswith(("scripted:", "http://", "https://")):
        raise UsageError(f"--engine {flags.engine} is neither a URL nor scripted:FILE")

    from hone.launch.gateway import GatewayOptions, serve_gateway

    options = GatewayOptions(**dataclasses.asdict(flags))
    run_server(serve_gateway(options, on_ready=_print_addresses))


_OPEN_WARNING = "Warning: every user of this machine can open and read sessions; see --token-file."


def _print_addresses(running: RunningGateway) -> None:
    """Print the addresses of the gateway and how a client uses its first session."""
    gateway, session = running.gateway, running.session
    base = gateway.url or "http://localhost"
    unversioned = base + session.path.removesuffix("/v1")
    through = "" if gateway.socket is None else f" --unix-socket {gateway.socket}"
    bearer = f' -H "Authorization: Bearer {running.token}"' if running.token else ""
    lines = (
        f"listening on {gateway.url or gateway.socket}",
        f"session {session.id} (open):",
        f"  OPENAI_BASE_URL={base}{session.path} OPENAI_API_KEY={session.key}",
        f"  ANTHROPIC_BASE_URL={unversioned} ANTHROPIC_API_KEY={session.key}",
        f"  GOOGLE_GEMINI_BASE_URL={unversioned} GEMINI_API_KEY={session.key}",
        f"new session: curl{through} -X POST{bearer} {base}/sessions",
        f"its tokens:  curl{through}{bearer} {base}/sessions/{session.id}/tree",
        *(() if running.token else (_OPEN_WARNING,)),
    )
    print("\n".join(lines), flush=True)
