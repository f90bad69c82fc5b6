"""A small command-line agent (standard library only) that begins its history again to review its fix.

    python3 reviewing_client.py PROBLEM STALLED_PROBLEM

It runs the bash blocks of the model. With STALLED_PROBLEM as its problem, it never ends.
"""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

TURNS = 5
MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def ask(messages):
    body = {"model": os.environ["MODEL"], "messages": messages}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["KEY"]}
    url = os.environ["URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())["choices"][0]["message"]


def run(command):
    done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout.decode("utf-8", "replace")[:600]


def main(problem, stalled_problem):
    user = {"role": "user", "content": problem}
    messages = [user]
    for _ in range(TURNS):
        reply = ask(messages)
        if problem == stalled_problem:
            signal.pause()
        block = re.search(r"```bash\n(.*?)\n```", reply["content"] or "", re.DOTALL)
        if block is None:
            return
        output = run(block[1])
        exchange = [reply, {"role": "user", "content": output}]
        messages += exchange
        if output.startswith(MARKER):
            ask([user, *exchange])  # without the turns before the fix
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
