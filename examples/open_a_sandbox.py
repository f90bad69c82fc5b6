"""Open a sandbox, run commands in it, and exchange files.

    .venv/bin/python examples/open_a_sandbox.py

It prints the output and exit code of three commands, of which one is stopped after a second. The sandbox has
this machine's programs, its own files, and no network; it is removed at the end.
"""

import hone


def main() -> None:
    with hone.sandbox(settings={"sandbox.memory_mib": 256}) as box:
        box.write("square.py", "print(sum(i * i for i in range(10)))\n")
        print("output:", box.exec("python3 square.py").text.strip())

        failed = box.exec(["python3", "-c", "raise SystemExit(3)"])
        print("exit code:", failed.exit_code)

        slow = box.exec("sleep 60", timeout_s=1)
        print("timed out:", slow.timed_out)

        box.exec("echo kept > result.txt")
        print("read back:", box.read("result.txt").decode().strip())


if __name__ == "__main__":
    main()
