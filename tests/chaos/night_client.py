"""A command-line agent on a bad night: what it does is drawn from the key of its session.

Works, drops the stream of an answer and asks again, crashes, hangs, floods its output, leaves daemons behind,
or never asks at all.
"""

import hashlib
import http.client
import json
import os
import subprocess
import sys
import time
from urllib.parse import urlsplit

TOOL = {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}
MOODS = ["works"] * 8 + ["drops"] * 6 + ["crashes", "hangs", "floods", "daemons", "leaves at once"]


def ask(messages, drop):
    url = urlsplit(os.environ["URL"])
    body = json.dumps(
        {
            "model": "policy",
            "messages": messages,
            "tools": [{"type": "function", "function": TOOL}],
            "stream": True,
        }
    )
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["KEY"]}
    connection = http.client.HTTPConnection(url.hostname, url.port)
    connection.request("POST", url.path + "/chat/completions", body, headers)
    answer = connection.getresponse()
    if answer.status != 200:
        raise OSError(answer.read().decode())
    if drop:
        answer.read(40)
        connection.close()
        return ask(messages, False)
    return joined(answer)


def joined(answer):
    content, calls = "", {}
    for line in answer:
        if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
            continue
        chunk = json.loads(line[6:])
        if "error" in chunk:
            raise OSError(str(chunk["error"]))
        for choice in chunk["choices"]:
            content += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls") or []:
                call = calls.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
                call["id"] += part.get("id") or ""
                call["name"] += part["function"].get("name") or ""
                call["arguments"] += part["function"].get("arguments") or ""
    return content, [calls[index] for index in sorted(calls)]


def misbehave(mood):
    if mood == "crashes":
        raise RuntimeError("a defect of this client")
    if mood == "hangs":
        time.sleep(1000)
    if mood == "floods":
        for _ in range(50):
            sys.stdout.write("x" * (1 << 20))
    if mood == "daemons":
        for _ in range(5):
            subprocess.Popen(["bash", "-c", "while true; do echo y; sleep 0.1; done"], start_new_session=True)


def main(prompt):
    digest = hashlib.sha256(os.environ["KEY"].encode()).digest()
    mood = MOODS[digest[0] % len(MOODS)]
    if mood == "leaves at once":
        return 7
    messages = [{"role": "user", "content": prompt}]
    while True:
        try:
            content, calls = ask(messages, mood == "drops")
        except OSError as error:
            print(error, file=sys.stderr)
            return 4
        misbehave(mood)
        said = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in calls
        ]
        messages.append({"role": "assistant", "content": content, **({"tool_calls": said} if said else {})})
        if not calls:
            return 0
        for call in calls:
            command = json.loads(call["arguments"])["command"]
            done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            output = done.stdout.decode("utf-8", "replace")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
