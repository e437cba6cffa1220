"""`ort-hina bench --router`."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ort_hina.benchmark import router


def test_every_case_is_measured_both_ways(bench, capsys):
    assert bench("--router", "--json", "-") == 0
    out, table = capsys.readouterr()
    results = json.loads(out)
    assert [(result["router"], result["experts"], result["tokens"]) for result in results] == [
        (name, experts, tokens)
        for name in ("softmax", "deepseek_v3")
        for experts in router.EXPERTS
        for tokens in router.TOKENS
    ]
    assert all(result["router_microseconds"] > 0 and result["read_share"] > 0 for result in results)
    assert table.count("deepseek_v3") == len(router.EXPERTS) * len(router.TOKENS)


@pytest.mark.parametrize("spelling", [router.SOFTMAX, router.DEEPSEEK_V3], ids=lambda spelling: spelling.name)
@pytest.mark.parametrize("experts", router.EXPERTS)
def test_both_compute_the_same(spelling, experts):
    """Else the comparison would mean nothing. Few of these tokens hang on a rounding."""
    logits = router.logits_of(512, experts)
    models = (router.unfused(spelling, experts), router.fused(spelling, experts))
    (ids, weights), (found_ids, found) = (router._session(model, 1).run(None, {"logits": logits}) for model in models)
    same = (ids == found_ids).all(axis=1)
    assert same.mean() > 0.97
    np.testing.assert_allclose(found[same], weights[same], rtol=1e-4)
