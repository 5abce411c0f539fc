"""What gateway, controller and engines share: documents, their store in Redis, and the two formulas of the choice.

- `choice`: K of each group of running decodes, for the most tokens per second;
- `prices`: the seconds of a step; `acceptance`: the mean tokens per decode and step;
- `model_policy`, `schedule`, `freeze`, `canary`, `model_routes`: the documents;
- `store`: how they are kept.
"""
