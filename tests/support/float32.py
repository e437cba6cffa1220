"""Error bounds of sums in float32."""

from __future__ import annotations

UNIT = 2.0**-24
# Half the distance of subnormal neighbours: the most that a product loses to underflow.
UNDERFLOW = 2.0**-150


def gamma(terms: int) -> float:
    """The relative error of a sum of products of `terms` terms in float32, whatever the order.

    A term is multiplied once and takes part in at most `terms` - 1 additions (adding to zero is exact), so it carries
    at most `terms` roundings (one fewer where multiplication and addition are fused), each within a factor 1 ± UNIT:
    (1 + UNIT)^terms - 1 <= terms·UNIT / (1 - terms·UNIT). See Higham, Accuracy and Stability, lemma 3.1.
    """
    return terms * UNIT / (1 - terms * UNIT)
