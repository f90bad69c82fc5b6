"""A small command-line agent (standard library only) that makes calls beside its own turns.

It runs the `bash` calls of the model, asks for a title after its first turn, and begins its history again
after the second, with a summary and the last exchange.
"""

import json
import os
import subprocess
import sys
import urllib.request

SYSTEM = {"role": "system", "content": "You fix bugs."}
TITLE = {"role": "system", "content": "Generate a concise title for the conversation."}
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
FUNCTION = {"name": "bash", "description": "Run a command.", "parameters": PARAMETERS}


def ask(messages, tools):
    body = {"model": os.environ["MODEL"], "messages": messages}
    if tools:
        body["tools"] = [{"type": "function", "function": FUNCTION}]
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["KEY"]}
    url = os.environ["URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())["choices"][0]["message"]


def run(call):
    command = json.loads(call["function"]["arguments"])["command"]
    done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = done.stdout.decode("utf-8", "replace")
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


def main(behaviour, prompt):
    user = {"role": "user", "content": prompt}
    messages, turns = [SYSTEM, user], 0
    while True:
        reply = ask(messages, tools=True)
        turns += 1
        messages.append(reply)
        if not reply.get("tool_calls"):
            return 0
        exchange = [reply, *map(run, reply["tool_calls"])]
        messages = [*messages[:-1], *exchange]
        if turns == 1:
            ask([TITLE, user], tools=False)
        if turns == 2:
            messages = [SYSTEM, {"role": "user", "content": "So far: the file was read."}, *exchange]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
