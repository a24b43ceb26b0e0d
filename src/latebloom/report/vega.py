"""The scripts that draw charts in a page: Vega, Vega-Lite and vega-embed, bundled by vl-convert."""

import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

BUNDLE = """
import sys, vl_convert
sys.stdout.buffer.write(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").encode())
"""


@cache
def start_bundling() -> Future[bytes]:
    """Bundle the scripts while this process draws figures; nothing is started before all results have been read.

    It takes a second, for all of which vl-convert holds Python's interpreter lock; so it has a process of its own.
    """
    # -P: a file vl_convert.py in the current folder is not imported.
    command = [sys.executable, "-P", "-c", BUNDLE]
    return ThreadPoolExecutor(1).submit(subprocess.check_output, command, stderr=subprocess.DEVNULL)


def vega_scripts() -> str:
    """Return the scripts as one text."""
    return start_bundling().result().decode()
