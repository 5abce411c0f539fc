"""Prepares vLLM's processes for model runner V2 on a CPU (`tests.support.interpreter`) as they start.

Python imports it where its folder is on `PYTHONPATH`; programs that are not vLLM's are left alone.
"""

import sys

if any("vllm" in word or "multiprocessing" in word for word in sys.orig_argv):
    from tests.support.interpreter import install

    install()
