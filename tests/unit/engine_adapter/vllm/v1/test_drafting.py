"""The embeddings that a drafter reads."""

from types import SimpleNamespace

import torch

from specpilot.engine_adapter.vllm.v1.drafting import use_plain_embeddings


def test_a_drafter_shares_the_targets_embeddings_without_lora() -> None:
    plain, wrapper = torch.nn.Embedding(4, 2), torch.nn.Module()
    wrapper.base_layer = plain
    model = torch.nn.Module()
    model.model = torch.nn.Module()
    own, shared_config = SimpleNamespace(additional_config={"a": 1}), {"a": 1}
    model.model.vllm_config, own.additional_config = own, shared_config
    for shared in (wrapper, plain):
        model.model.embed_tokens = shared
        use_plain_embeddings(SimpleNamespace(model=model))
        assert model.model.embed_tokens is plain
    assert own.additional_config.items() > shared_config.items() == {"a": 1}.items()  # by which code is cached
    use_plain_embeddings(SimpleNamespace(model=torch.nn.Module()))
