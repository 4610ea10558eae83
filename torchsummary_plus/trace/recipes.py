"""Recipes in the kernel cache, which recreate an operator's result for further arguments of the same shapes."""

from __future__ import annotations

from collections.abc import Mapping, Set
from contextlib import nullcontext
from typing import Any

import torch

from ..live import compat
from ..live.fakes import META, Fake, wrap
from ..ops.shapes.views import View


def recipe_of(out: Any, fakes: list[Fake]) -> Any:
    """Return how to recreate a result: an argument's index or a new tensor; None if it is neither."""
    places = {id(fake): index for index, fake in reversed(list(enumerate(fakes)))}
    return _recipe_beside(out, places, {fake.untyped_storage()._cdata for fake in fakes})


def _recipe_beside(out: Any, places: Mapping[int, int], storages: Set[int]) -> Any:
    """Return the recipe, given the arguments' positions by id and their storages."""
    if isinstance(out, Fake):
        if id(out) in places:
            return places[id(out)]
        if out.layout is not torch.strided or out.storage_offset() or out.untyped_storage()._cdata in storages:
            return None
        return (out.shape, out.stride(), out.dtype, out.fake_device)
    if isinstance(out, (list, tuple)) and out:
        recipes = [_recipe_beside(item, places, storages) for item in out]
        return None if any(recipe is None for recipe in recipes) else [type(out), recipes]
    return None


def from_recipe(recipe: Any, fakes: list[Fake]) -> Any:
    """Recreate a result from its recipe, for arguments of the same kind."""
    if type(recipe) is tuple:
        shape, stride, dtype, device = recipe
        with compat.no_dispatch():
            return wrap(torch.empty_strided(shape, stride, dtype=dtype, device=META), device)
    if type(recipe) is int:
        return fakes[recipe]
    if type(recipe) is View:
        return _viewing(recipe, fakes[0])
    if recipe is None:
        return None
    return recipe[0]([from_recipe(item, fakes) for item in recipe[1]])


def _viewing(view: View, base: Fake) -> Fake:
    """Return a view of a fake; torch's own kernels would import much of torch.distributed.

    In inference mode, a view of a tensor from outside is a tensor from outside too.
    """
    is_from_outside = torch.is_inference_mode_enabled() and not base.is_inference()
    with compat.no_dispatch(), torch.inference_mode(False) if is_from_outside else nullcontext():
        plain = torch.empty(0, dtype=base.dtype, device=META)
        plain.set_(base.untyped_storage(), base.storage_offset() + view.offset, view.shape, view.stride)
        plain = plain.conj() if base.is_conj() else plain
        plain = torch.ops.aten._neg_view(plain) if base.is_neg() else plain
        return wrap(plain, base.fake_device)


def copied_whole(part: Fake) -> Fake:
    """Return the same part of a copy of a fake's whole storage."""
    with compat.no_dispatch():
        whole = torch.empty(part.untyped_storage().nbytes() // part.itemsize, dtype=part.dtype, device=META)
        plain = whole.as_strided(part.shape, part.stride(), part.storage_offset()).detach()
        return wrap(plain, part.fake_device)
