"""vLLM is imported once, before the tests that import parts of it: what it imports warns then, and no longer."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, of what vLLM imports
    import vllm.v1.worker.gpu.model_runner
    import vllm.v1.worker.gpu_model_runner  # noqa: F401 - together they import nearly all of vLLM
