"""A small agent that speaks the Agent Client Protocol (standard library only). Argument: its behaviour."""

import json
import os
import sys

from client import ask, run


def write(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def read():
    return json.loads(sys.stdin.readline())


def update(variant, **more):
    params = {"sessionId": "s", "update": {"sessionUpdate": variant, **more}}
    write({"method": "session/update", "params": params})


def allowed(title):
    options = [
        {"optionId": "no", "name": "No", "kind": "reject_once"},
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    ]
    params = {"sessionId": "s", "toolCall": {"toolCallId": title}, "options": options}
    write({"id": "permission", "method": "session/request_permission", "params": params})
    return read()["result"]["outcome"] == {"outcome": "selected", "optionId": "yes"}


def misbehave(behaviour):
    """Do what breaks the protocol, after the first reply of the model."""
    if behaviour == "long-line":
        sys.stdout.write("x" * (20 << 20))
        sys.stdout.flush()
        sys.stdin.readline()
    if behaviour == "junk":
        while True:
            print("a line of a log", flush=True)
    if behaviour == "wrong-ids":
        while True:
            write({"id": 99, "result": {}})
    if behaviour == "endless":
        while True:
            update("agent_message_chunk", content={"type": "text", "text": "and on"})
    if behaviour == "exits":
        sys.exit(0)
    if behaviour == "deep":
        while True:
            print("[" * 100_000, flush=True)
    if behaviour == "files":
        write({"id": 7, "method": "fs/read_text_file", "params": {"path": "/etc/shadow", "sessionId": "s"}})
        print(read(), file=sys.stderr)
        write({"id": 8, "method": "terminal/create", "params": {"command": "id", "sessionId": "s"}})
        print(read(), file=sys.stderr)
    if behaviour == "waits":
        message = read()
        assert message["method"] == "session/cancel", message
        print("cancelled", file=sys.stderr)


def work(behaviour, prompt):
    messages = [{"role": "user", "content": prompt}]
    while True:
        reply = ask(messages)
        update("agent_message_chunk", content={"type": "text", "text": reply.get("content") or ""})
        misbehave(behaviour)
        messages.append(reply)
        if behaviour == "waits":
            return "cancelled"
        if not reply.get("tool_calls"):
            return "end_turn"
        for call in reply["tool_calls"]:
            title = call["function"]["arguments"]
            update("tool_call", toolCallId=title, title=title, kind="execute", status="pending")
            if allowed(title):
                messages.append(run(call))
            update("tool_call_update", toolCallId=title, status="completed")


def main(behaviour):
    while True:
        request = read()
        method, number = request["method"], request["id"]
        if method == "initialize":
            version = 2 if behaviour == "newer" else request["params"]["protocolVersion"]
            write({"id": number, "result": {"protocolVersion": version, "agentCapabilities": {}}})
        elif method == "session/new":
            if behaviour == "needs-login":
                write({"id": number, "error": {"code": -32000, "message": "Authentication required"}})
                continue
            os.chdir(request["params"]["cwd"])
            write({"id": number, "result": {"sessionId": "s"}})
        elif method == "session/prompt":
            reason = work(behaviour, request["params"]["prompt"][0]["text"])
            write({"id": number, "result": {"stopReason": reason}})


if __name__ == "__main__":
    main(sys.argv[1])
