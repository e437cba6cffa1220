"""Error bounds of sums in float32, and of products of bfloat16 that are summed so."""

from __future__ import annotations

UNIT = 2.0**-24
# Half the distance of subnormal neighbours: the most that a product loses to underflow.
UNDERFLOW = 2.0**-150
# The smallest normal number, of float32 and of bfloat16: instructions for bfloat16 take what is smaller for 0, and make 0 of
# it.
SMALLEST_NORMAL = 2.0**-126


def gamma(terms: int) -> float:
    """The relative error of a sum of products of `terms` terms in float32, whatever the order.

    A term is multiplied once and takes part in at most `terms` - 1 additions (adding to zero is exact), so it carries
    at most `terms` roundings (one fewer where multiplication and addition are fused), each within a factor 1 ± UNIT:
    (1 + UNIT)^terms - 1 <= terms·UNIT / (1 - terms·UNIT). See Higham, Accuracy and Stability, lemma 3.1.
    """
    return terms * UNIT / (1 - terms * UNIT)


def lost_below(terms: int, products: str) -> float:
    """What a sum of `terms` products loses because numbers can be too small.

    Products of float32: UNDERFLOW each; sums are exact there. Products of bfloat16 (vdpbf16ps, tdpbf16ps): they have 16 bits
    and are exact, so gamma(terms) covers the additions in any order (two products first, even and odd ones apart, ...); but
    each of the `terms` products and of the fewer than `terms` sums may be flushed to 0.
    """
    return terms * UNDERFLOW if products == "float" else 2 * terms * SMALLEST_NORMAL
