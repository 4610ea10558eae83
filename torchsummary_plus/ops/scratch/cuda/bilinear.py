"""CUDA: the products that bilinear layers consist of, for one slice of the weight after the other."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ....data.capability import Capability
from ..registry import Course, Lasting, lasting, scratch
from ..sliced_products import SOURCE, Products
from .blas import is_outer_product, workspace_bytes
from .chips import chip_of
from .products import batch_product
from .reductions import sum_course


@scratch("cuda", "aten::_trilinear", source=SOURCE, band=0.0, by_capability=True)
def trilinear(capability: Capability, out: Any, *args: Any) -> Course:
    """The product of two slices, then its product with a slice of the third, beside the result."""
    chip = chip_of(capability)

    def multiplied(product: Tensor, a: Tensor, b: Tensor) -> Course:
        return () if is_outer_product(a, b) else (*batch_product(product, a, b), Lasting())

    return Products(lambda _, tensor, axis: sum_course(chip, tensor, [axis]), multiplied).of_slice(*args)


@lasting("cuda", "aten::_trilinear", source=SOURCE, band=0.0, by_capability=True)
def cublas(capability: Capability, out: Any, *args: Any) -> tuple[tuple[str, int], ...]:
    """The workspace of matrix products, if any."""
    uses_cublas = []

    def product(_: Tensor, a: Tensor, b: Tensor) -> Course:
        uses_cublas.append(not is_outer_product(a, b))
        return ()

    Products(lambda *_: (), product).of_slice(*args)
    return (("cublas", workspace_bytes(capability)),) if any(uses_cublas) else ()
