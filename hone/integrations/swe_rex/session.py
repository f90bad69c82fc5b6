"""A bash session of SWE-ReX in a sandbox: the actions of `swerex.runtime.abstract` on a terminal.

Bash shows `MARK<exit code>` as its prompt, so that the end of a command and its exit code arrive together, also
after an interrupt. A command is checked and run from a file: its text never passes through a shell of the host.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    NoExitCodeError,
    NonZeroExitCodeError,
    SessionNotInitializedError,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    BashObservation,
    CreateBashSessionRequest,
    CreateBashSessionResponse,
)

from hone.integrations.swe_rex.terminal import START_TIMEOUT_S, Match, Terminal, TerminalClosed
from hone.sandbox.contract import Sandbox

CHECK_TIMEOUT_S = 30.0  # for `bash -n`
SETTLE_TIMEOUT_S = 5.0  # for bash to answer after a program has gone
_ESCAPES = re.compile(r"\x1B[@-_][0-?]*[ -/]*[@-~]")


class Session:
    """One session; a closed one cannot be used again."""

    def __init__(self, sandbox: Sandbox, request: CreateBashSessionRequest) -> None:
        self._sandbox, self._request = sandbox, request
        self._terminal = Terminal(sandbox)
        self._mark = f"<prompt-{secrets.token_hex(8)}:"
        self._prompt = re.compile(re.escape(self._mark) + r"(\d+)>")
        prompts = f'PS0= PS1="{self._mark}\\$?>" PS2='
        self._set_prompts = f"export PROMPT_COMMAND='{prompts}' PS0= PS1= PS2="
        self._actions = 0

    async def start(self) -> CreateBashSessionResponse:
        """Start bash with its start-up files, then source the request's files."""
        try:
            await self._terminal.start()
            await self._terminal.write(f"{self._set_prompts}\n")
            await self._until_prompt(START_TIMEOUT_S)
            output = ""
            if self._request.startup_source:
                sources = [f"source {path}" for path in self._request.startup_source]
                await self._terminal.write(" ; ".join([*sources, self._set_prompts]) + "\n")
                output = await self._until_prompt(self._request.startup_timeout)
        except TimeoutError as error:
            raise CommandTimeoutError("bash did not finish its start-up files in time") from error
        except TerminalClosed as error:
            raise SessionNotInitializedError(
                f"no session could be started, {error}. The image needs bash and python3"
            ) from error
        return CreateBashSessionResponse(output=output)

    async def run(self, action: BashAction | BashInterruptAction) -> BashObservation:
        """Run an action. Raises the exceptions that SWE-ReX's own session raises, and SandboxLost."""
        try:
            if isinstance(action, BashInterruptAction):
                return await self._interrupt(action)
            if action.is_interactive_command or action.is_interactive_quit:
                return await self._run_interactive(action)
            observation = await self._run_normal(action)
        except TerminalClosed as error:
            raise SessionNotInitializedError(f"session {action.session!r} is over: {error}") from error
        _check(action, observation)
        return observation

    async def close(self) -> None:
        await self._terminal.close()

    async def _run_normal(self, action: BashAction) -> BashObservation:
        self._actions += 1
        file = f"{self._terminal.directory}/{self._actions}"
        await self._sandbox.write(file, action.command.encode("utf-8", "surrogateescape"))
        await self._check_syntax(file, action.command)
        await self._terminal.write(f'eval "$(< {file})"\n')
        match = await self._expect(action.command, action.expect, action.timeout)
        output, expected = _clean(match.before), self._expected(match, action.expect)
        if match.index < len(action.expect):  # the command still runs
            return BashObservation(output=output, exit_code=None, expect_string=expected)
        code = None if action.check == "ignore" else int(match.found.group(1))
        return BashObservation(output=output, exit_code=code, expect_string=expected)

    async def _check_syntax(self, file: str, command: str) -> None:
        """Raise BashIncorrectSyntaxError for a command that bash cannot parse."""
        done = await self._sandbox.exec(["bash", "-n", file], timeout_s=CHECK_TIMEOUT_S)
        if done.timed_out:
            raise CommandTimeoutError(f"bash did not check the syntax within {CHECK_TIMEOUT_S:.0f} s")
        if done.exit_code != 0:
            stdout, stderr = done.text, done.stderr.decode("utf-8", "backslashreplace")
            raise BashIncorrectSyntaxError(
                f"Error (exit code {done.exit_code}) while checking bash command \n{command!r}\n"
                f"---- Stderr ----\n{stderr}\n---- Stdout ----\n{stdout}",
                extra_info={"bash_stdout": stdout, "bash_stderr": stderr},
            )

    async def _run_interactive(self, action: BashAction) -> BashObservation:
        await self._terminal.write(f"{action.command}\n")
        match = await self._expect(action.command, action.expect, action.timeout)
        output = _clean(match.before)
        if action.is_interactive_quit:
            await self._terminal.write("stty -echo\n")  # the program may have changed it
            await self._until_prompt(SETTLE_TIMEOUT_S)
        else:
            output = output.lstrip().removeprefix(action.command).strip()  # echoed by the program
        return BashObservation(output=output, exit_code=0, expect_string=self._expected(match, action.expect))

    async def _interrupt(self, action: BashInterruptAction) -> BashObservation:
        """Press Ctrl-C until a prompt comes; then stop the program and kill it."""
        for _ in range(action.n_retry):
            await self._terminal.write("\x03")
            try:
                match = await self._terminal.expect(self._patterns(action.expect), timeout_s=action.timeout)
            except TimeoutError:
                continue
            output = _clean(match.before) + await self._settle(match, action.expect)
            return self._interrupted(output, match, action.expect)
        try:
            await self._terminal.write("\x1a")
            stopped = await self._terminal.expect(self._patterns(action.expect), timeout_s=SETTLE_TIMEOUT_S)
            await self._terminal.write("kill -9 %%\n")
            match = await self._terminal.expect(self._patterns(action.expect), timeout_s=SETTLE_TIMEOUT_S)
        except TimeoutError as error:
            raise CommandTimeoutError("Failed to interrupt session") from error
        return self._interrupted(_clean(stopped.before + match.before), match, action.expect)

    def _interrupted(self, output: str, match: Match, expect: Sequence[str]) -> BashObservation:
        return BashObservation(
            output=output.strip(), exit_code=0, expect_string=self._expected(match, expect)
        )

    async def _settle(self, match: Match, expect: Sequence[str]) -> str:
        """Return the output up to now; several interrupts may each have brought a prompt."""
        if match.index < len(expect):  # a program's own prompt
            return ""
        token = secrets.token_hex(8)
        await self._terminal.write(f"echo {token[:8]}''{token[8:]}\n")
        try:
            rest = await self._terminal.expect([re.compile(token)], timeout_s=SETTLE_TIMEOUT_S)
            await self._until_prompt(SETTLE_TIMEOUT_S)
        except TimeoutError as error:
            raise CommandTimeoutError("bash did not answer after an interrupt") from error
        return self._prompt.sub("", _clean(rest.before))

    async def _expect(self, command: str, expect: Sequence[str], timeout_s: float | None) -> Match:
        try:
            return await self._terminal.expect(self._patterns(expect), timeout_s=timeout_s)
        except TimeoutError as error:
            raise CommandTimeoutError(
                f"timeout after {timeout_s} seconds while running command {command!r}"
            ) from error

    def _patterns(self, expect: Sequence[str]) -> list[re.Pattern[str]]:
        return [*(re.compile(each, re.DOTALL) for each in expect), self._prompt]

    def _expected(self, match: Match, expect: Sequence[str]) -> str:
        return [*expect, self._mark][match.index]

    async def _until_prompt(self, timeout_s: float) -> str:
        """Return the output up to the next prompt. Raises TimeoutError."""
        return _clean((await self._terminal.expect([self._prompt], timeout_s=timeout_s)).before)


def _check(action: BashAction, observation: BashObservation) -> None:
    """Raise for a missing or non-zero exit code, if the action asks for that."""
    if action.check != "raise" or observation.exit_code == 0:
        return
    if observation.exit_code is None:
        raise NoExitCodeError(f"Command {action.command!r} still runs: {observation.expect_string!r} came")
    message = (
        f"Command {action.command!r} failed with exit code {observation.exit_code}. "
        f"Here is the output:\n{observation.output!r}"
    )
    raise NonZeroExitCodeError(f"{action.error_msg}: {message}" if action.error_msg else message)


def _clean(text: str) -> str:
    """Return a terminal's output as plain text."""
    return _ESCAPES.sub("", text).replace("\r\n", "\n")
