"""`hone gateway`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hone.cli.errors import UsageError

if TYPE_CHECKING:
    from hone.launch.gateway import RunningGateway

EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="URL|scripted:FILE",
        help="A server that samples (http://host:8000), or a file with the replies to play.",
        show_default=False,
    ),
]
KindOption = Annotated[Literal["vllm", "sglang"], typer.Option("--kind", help="What the server at URL is.")]
ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model", metavar="FOLDER", help="The model's tokenizer and chat template.", show_default=False
    ),
]
RendererOption = Annotated[
    str, typer.Option("--renderer", metavar="NAME", help="Who turns messages into its tokens.")
]
PortOption = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.", show_default=False),
]
SocketOption = Annotated[
    Path | None,
    typer.Option("--socket", metavar="PATH", help="Unix socket in place of a port.", show_default=False),
]
HostOption = Annotated[str, typer.Option("--host", help="Address to listen on.")]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the token that opens and shows sessions; without it, a port's are anyone's.",
    ),
]
ContextOption = Annotated[
    int,
    typer.Option("--context-tokens", min=1, help="Prompt and reply together may not be longer than this."),
]
MaxTokensOption = Annotated[int, typer.Option("--max-tokens", min=1, help="Longest reply, in tokens.")]
TemperatureOption = Annotated[float, typer.Option("--temperature", min=0.0, help="Of the sampling.")]
CallsOption = Annotated[
    int, typer.Option("--calls", min=0, help="Replies that a session may have; 0: no limit.")
]
TokensOption = Annotated[
    int, typer.Option("--tokens", min=0, help="Tokens that may be sampled in a session; 0: no limit.")
]
SecondsOption = Annotated[
    float, typer.Option("--seconds", min=0.0, help="How long a session may take; 0: no limit.")
]


def gateway(
    engine: EngineOption,
    port: PortOption = None,
    socket: SocketOption = None,
    model: ModelOption = None,
    kind: KindOption = "vllm",
    renderer: RendererOption = "auto",
    host: HostOption = "127.0.0.1",
    token_file: TokenFileOption = None,
    context_tokens: ContextOption = 131_072,
    max_tokens: MaxTokensOption = 4096,
    temperature: TemperatureOption = 1.0,
    calls: CallsOption = 0,
    tokens: TokensOption = 0,
    seconds: SecondsOption = 0.0,
) -> None:
    """Serve a policy to command-line agents, and keep every token of what they and it say.

    Speaks OpenAI chat completions and responses, and Anthropic messages. How replies are drawn is said here;
    what clients ask for in its place is not used. POST /sessions opens a session for one rollout,
    GET /sessions/ID/tree gives its tokens. Ends on SIGTERM or Ctrl-C.

    [bold]Example[/bold]: hone gateway --engine http://127.0.0.1:8000 --model models/qwen3 --port 8080

    [bold]Example[/bold]: hone gateway --engine scripted:session.jsonl --socket gateway.sock
    """
    if (port is None) == (socket is None):
        raise UsageError("give --port or --socket, and not both")
    if not engine.startswith(("scripted:", "http://", "https://")):
        raise UsageError(f"--engine {engine} is neither a URL nor scripted:FILE")

    import asyncio

    import uvloop

    from hone.launch.gateway import GatewayOptions, serve_gateway
    from hone.policy.gateway import SessionLimits
    from hone.policy.settings import SamplingSettings

    serving = serve_gateway(
        GatewayOptions(
            engine=engine,
            kind=kind,
            model=model,
            renderer=renderer,
            context_tokens=context_tokens,
            sampling=SamplingSettings(max_tokens=max_tokens, temperature=temperature),
            limits=SessionLimits(calls=calls, sampled_tokens=tokens, seconds=seconds),
            host=host,
            port=port,
            socket=socket,
            token_file=token_file,
        ),
        on_ready=_print_addresses,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serving)


_OPEN = "every user of this machine may open and read sessions: see --token-file"


def _print_addresses(running: RunningGateway) -> None:
    """How to replace_symlink a client at it."""
    gateway, session = running.gateway, running.session
    base = gateway.url or "http://localhost"
    through = "" if gateway.socket is None else f" --unix-socket {gateway.socket}"
    bearer = f' -H "Authorization: Bearer {running.token}"' if running.token else ""
    lines = (
        f"listening on {gateway.url or gateway.socket}",
        f"session {session.id} is open:",
        f"  OPENAI_BASE_URL={base}{session.path} OPENAI_API_KEY={session.key}",
        f"  ANTHROPIC_BASE_URL={base}{session.path.removesuffix('/v1')} ANTHROPIC_API_KEY={session.key}",
        f"another one: curl{through} -X POST{bearer} {base}/sessions",
        f"its tokens:  curl{through}{bearer} {base}/sessions/{session.id}/tree",
        *(() if running.token else (_OPEN,)),
    )
    print("\n".join(lines), flush=True)
