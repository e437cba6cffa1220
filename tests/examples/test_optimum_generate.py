"""Optimum's `generate` with a fused model: a batch of prompts, padded at the left."""

from __future__ import annotations

import pytest

import ort_hina

# As many as the tiny models have, and more.
WORDS = ("<pad>", "<s>", "</s>", *(f"w{i}" for i in range(3, 1000)))
PROMPTS = ["w3 w4 w5 w6 w7", "w9"]


@pytest.fixture
def folder(tiny_copy):
    """A fused export with a tokenizer of whole words beside it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model = tiny_copy("qwen3_moe")
    assert ort_hina.fuse(model).fused
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>").save_pretrained(model.parent)
    return model.parent


def test_the_texts_are_those_of_pytorch(folder, tiny_pytorch, monkeypatch, capsys):
    pytest.importorskip("optimum.onnxruntime")
    import torch
    from optimum_generate import main
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True, return_token_type_ids=False)
    assert inputs["attention_mask"].tolist() == [[1] * 5, [0] * 4 + [1]]
    with torch.no_grad():
        ids = tiny_pytorch("qwen3_moe").generate(**inputs, max_new_tokens=8, do_sample=False, pad_token_id=0)
    monkeypatch.setattr("sys.argv", ["optimum_generate.py", str(folder), "8", *PROMPTS])
    main()
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert [len(text.split()) for text in texts] == [5 + 8, 1 + 8]
    assert capsys.readouterr().out.splitlines()[-2:] == texts
