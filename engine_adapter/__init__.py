"""The vLLM plugin: gives each request its own K, and chooses K from the engine's own counts and step times.

Where to read on:

- what decides K of one request, and what happens when traffic changes: `plan.planner`;
- why this K: `law.law` (inputs and memories), `law.batch_choice` (groups), `law.choice` (the formula);
- what a probe costs: `plan.probes`;
- the methods of vLLM's scheduler that are replaced: `vllm.scheduler`; of its model runners: `vllm.v1`, `vllm.v2`;
- what the engine exports and receives: `agent.agent`.
"""
