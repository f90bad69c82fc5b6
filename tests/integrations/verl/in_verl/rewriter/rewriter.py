"""A command-line agent that runs the model's bash blocks and, in most runs, rewrites its history once.

Standard library only. The argument is the task. Of three runs, one keeps its history, one forgets its first
reply, and one replaces what its first command printed and asks again.
"""

import json
import os
import random
import re
import subprocess
import sys
import urllib.request

BLOCK = re.compile(r"```bash[ \t]*\n(.*?)\n```", re.DOTALL)
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
TURNS = 3


def ask(messages):
    body = json.dumps({"model": os.environ["MODEL"], "messages": messages}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["KEY"]}
    request = urllib.request.Request(os.environ["URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())["choices"][0]["message"]["content"]


def observe(reply):
    """Run the bash block of a reply; return what it printed."""
    found = BLOCK.search(reply)
    if not found:
        return "Reply with one bash block."
    done = subprocess.run(["bash", "-c", found[1]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout.decode("utf-8", "replace")[:400]


def main(task):
    rewrite = random.choice(["nothing", "forgets", "asks again"])
    messages = [{"role": "user", "content": task}]
    observation = ""
    for turn in range(TURNS):
        reply = ask(messages)
        if turn == 1 and rewrite == "asks again":
            messages[-1] = {"role": "user", "content": observation + "\nLook again."}
            reply = ask(messages)
        observation = observe(reply)
        if SUBMIT in observation:
            return 0
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": observation}]
        if turn == 0 and rewrite == "forgets":
            messages = [{"role": "user", "content": task + "\n" + observation}]
    return 7


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
