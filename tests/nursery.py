"""A process that has everything imported, and forks children which write, run commands, and come to grief.

Run as a script it reads one order a line, in JSON, and answers each with how the child ended. It never computes a
gradient itself, since torch refuses that in a child of a process that did.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


class Nursery:
    """The side of the tests."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def write(self, output, folder, first, **order):
        """A child that writes version after version of an output, from ``first`` on; how it ended, and the seconds."""
        return self._ask(output=output, folder=str(folder), first=first, **order)

    def command(self, *arguments, folder, **order):
        """A child that runs a command of excise in a folder; how it ended."""
        return self._ask(arguments=[str(argument) for argument in arguments], folder=str(folder), **order)

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, **order):
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def serve():
    import outputs

    import excise.cli

    for name in ("excise.unlearning.unlearner", "excise.task.loading", "excise.baselines"):
        __import__(name)
    with tempfile.TemporaryDirectory() as folder:  # what is slow the first time, such as finding fonts
        for output in outputs.OUTPUTS.values():
            output.write(Path(folder), 0)
    for line in sys.stdin:
        order = json.loads(line)
        with tempfile.TemporaryFile() as heard:
            began = time.monotonic()
            child = os.fork()
            if child == 0:
                become(order, heard, outputs.OUTPUTS, excise.cli.main)
            if order.get("after") is not None:
                time.sleep(order["after"])
                os.kill(child, getattr(signal, order.get("signal", "SIGKILL")))
            status = ended(child, getattr(signal, order.get("signal", "SIGKILL")), patient=order.get("after") is None)
            heard.seek(0)
            answer = {
                "code": os.waitstatus_to_exitcode(status),
                "said": heard.read().decode(errors="replace"),
                "seconds": time.monotonic() - began,
            }
        print(json.dumps(answer), flush=True)


def ended(child, number, *, patient):
    """How a child ended. One that goes on after a signal gets it again each second, as a user would press Ctrl-C again:
    torch may take an interrupt for an error of its own and pass over it. After half a minute it is killed.
    """
    tenths = 0
    while True:
        tenths += 1
        found, status = os.waitpid(child, 0 if patient else os.WNOHANG)
        if found:
            return status
        time.sleep(0.1)
        if tenths % 10 == 0:
            os.kill(child, signal.SIGKILL if tenths > 300 else number)


def become(order, heard, outputs, main):
    """Be the child: carry the order out, and never return."""
    code = 70
    try:
        for stream in (1, 2):
            os.dup2(heard.fileno(), stream)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores
        os.chdir(order["folder"])
        for name, most in order.get("limits", {}).items():
            which = getattr(resource, name)
            resource.setrlimit(which, (most + (used_memory() if name == "RLIMIT_AS" else 0),) * 2)
        if "output" in order:
            last = order["first"] + order.get("count", 10**6)
            for version in range(order["first"], last):
                outputs[order["output"]].write(Path(order["folder"]), version)
            code = 0
        else:
            sys.argv = ["excise", *order["arguments"]]
            main()
            code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        import traceback

        os.write(2, f"{type(error).__name__}: {error}\n{traceback.format_exc()}".encode())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def used_memory():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    serve()
