"""A small command-line agent (standard library only) that runs the `bash` calls of the model.

Arguments: its behaviour (see `main`), then the prompt.
"""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]


def ask(messages):
    body = json.dumps({"model": os.environ["MODEL"], "messages": messages, "tools": TOOLS}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["KEY"]}
    request = urllib.request.Request(os.environ["URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())["choices"][0]["message"]


def run(call):
    command = json.loads(call["function"]["arguments"])["command"]
    done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = done.stdout.decode("utf-8", "replace")
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


def main(behaviour, prompt):
    messages = [{"role": "user", "content": prompt}]
    while True:
        try:
            reply = ask(messages)
        except (urllib.error.URLError, OSError) as error:
            output = error.read().decode() if isinstance(error, urllib.error.HTTPError) else str(error)
            print(output, file=sys.stderr)
            if behaviour == "shortens" and "context_length_exceeded" in output:
                messages[1:] = []
                messages[0] = {"role": "user", "content": "go on"}
                continue
            if behaviour == "insists":
                time.sleep(0.05)
                continue
            return 4
        messages.append(reply)
        if behaviour == "crashes":
            raise RuntimeError("a defect of this client")
        if behaviour == "hangs":
            time.sleep(1000)
        if behaviour == "floods":
            for _ in range(20):
                sys.stdout.write("x" * (1 << 20))
        if behaviour == "leaves-daemons":
            for _ in range(5):
                subprocess.Popen(
                    ["bash", "-c", "while true; do echo y; sleep 0.01; done"], start_new_session=True
                )
        if not reply.get("tool_calls"):
            return 0
        messages += [run(call) for call in reply["tool_calls"]]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
