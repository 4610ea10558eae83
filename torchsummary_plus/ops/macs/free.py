"""Operators without multiply-adds by convention: all but products, convolutions, attention and recurrent cells.

The convention is that of torch's flop counter and of fvcore: element-wise work, normalisation, activation, pooling,
softmax, reductions, comparison, sorting, indexing, random numbers, factories and data movement are free. A lookup
(embedding) and a sum of lookups (embedding bag) are indexing and a reduction; resampling is indexing and a weighted
element-wise sum.

An operator is free if torch tags it as pointwise, if its schema shows that it only creates, views or inspects tensors,
or if it is listed below, itself or as the base of a gradient, copying, foreach or in-place form. Composite operators
are not listed: a pass sees what they are made of. No guesses: FFT, linear algebra, sparse kernels and operators of
later releases are not free.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch._ops import OpOverload

ELEMENTWISE = """
    __irshift__ __lshift__ __rshift__ complex floor_divide leaky_relu _conj_physical linalg_cross addr polar prelu
    rrelu_with_noise rrelu_with_noise_functional _add_relu _prelu_kernel glu glu_jvp glu_backward_jvp hardswish
    infinitely_differentiable_gelu log_sigmoid log_sigmoid_forward dropout native_dropout _fused_dropout
    _masked_scale _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_differentiable_lstm_cell
    _thnn_fused_gru_cell _thnn_differentiable_gru_cell _transform_bias_rescale_qkv _standard_gamma_grad
    _dirichlet_grad _fused_adagrad _fused_adam _fused_adamw _fused_sgd _amp_foreach_non_finite_check_and_unscale
    _amp_update_scale
"""
SOFTMAX = """
    softmax _softmax log_softmax _log_softmax _safe_softmax _masked_softmax _nested_tensor_softmax_with_shape
    _sparse_softmax _sparse_log_softmax _softmax_backward_data _log_softmax_backward_data
    _sparse_softmax_backward_data _sparse_log_softmax_backward_data
"""
REDUCTIONS = """
    all amax amin aminmax _aminmax any argmax argmin bincount count_nonzero cummax cummaxmin cummin _cummax_helper
    _cummin_helper cumprod cumsum dist hash_tensor histc histogram _histogramdd_bin_edges _histogramdd_from_bin_cts
    _histogramdd_from_bin_tensors _is_all_true _is_any_true kthvalue linalg__powsum linalg_vector_norm logcumsumexp
    _logcumsumexp logsumexp mean median mode nanmedian nansum norm powsum prod segment_reduce _segment_reduce std
    std_mean sum trace value_selecting_reduction var var_mean _nested_sum_backward _sparse_csr_prod _sparse_csr_sum
    _sparse_sum
"""
NORMALISATION = """
    batch_norm batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt batch_norm_gather_stats
    batch_norm_gather_stats_with_counts batch_norm_stats batch_norm_update_stats _batch_norm_no_update
    _batch_norm_with_update _batch_norm_with_update_functional cudnn_batch_norm miopen_batch_norm native_batch_norm
    _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    quantized_batch_norm group_norm native_group_norm instance_norm layer_norm native_layer_norm _fused_rms_norm
    native_norm renorm embedding_renorm _weight_norm_interface _weight_norm_differentiable
"""
POOLING = """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
    adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d fractional_max_pool2d
    fractional_max_pool3d max_pool1d max_pool2d max_pool2d_with_indices max_pool3d_with_indices max_unpool2d
    max_unpool3d mkldnn_adaptive_avg_pool2d mkldnn_max_pool2d mkldnn_max_pool3d quantized_max_pool1d
    quantized_max_pool2d quantized_max_pool3d
"""
RESAMPLING = """
    cudnn_grid_sampler grid_sampler_2d grid_sampler_3d _grid_sampler_2d_cpu_fallback upsample_bicubic2d
    upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_trilinear3d _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_lanczos2d_aa
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
"""
CHECKS = """
    _functional_assert_async _functional_assert_scalar _functional_sym_constrain_range
    _functional_sym_constrain_range_for_size requires_grad
"""
LOSSES = """
    binary_cross_entropy binary_cross_entropy_with_logits _ctc_loss _cudnn_ctc_loss miopen_ctc_loss huber_loss
    mse_loss multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward nll_loss nll_loss2d
    nll_loss2d_forward nll_loss_forward smooth_l1_loss soft_margin_loss
"""
SORTING_AND_SEARCHING = """
    argsort bucketize isin nonzero nonzero_static searchsorted sort topk unique_consecutive unique_dim
    unique_dim_consecutive _unique _unique2
"""
INDEXING = """
    embedding embedding_bag _embedding_bag _embedding_bag_forward_only _embedding_bag_dense_backward
    _embedding_bag_per_sample_weights_backward _embedding_bag_sparse_backward embedding_dense_backward
    embedding_sparse_backward gather index index_add index_copy index_fill index_put index_reduce index_select
    _index_put_impl _unsafe_index _unsafe_index_put _unsafe_masked_index _unsafe_masked_index_put_accumulate
    masked_scatter masked_select put scatter scatter_add scatter_reduce take
"""
MOVEMENT = """
    _copy_from _copy_from_and_resize _to_copy copy copy_sparse_to_sparse to_mkldnn to_dense _lazy_clone lift
    _mkldnn_reshape _mkldnn_transpose mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight resize resize_as
    _resize_output set record_stream _pin_memory block_diag cat _chunk_cat stack _stack constant_pad_nd
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
    channel_shuffle native_channel_shuffle pixel_shuffle pixel_unshuffle col2im im2col flip roll rot90 repeat
    repeat_interleave diag_embed fill fill_diagonal tril triu zero as_strided_scatter diagonal_scatter
    select_scatter slice_scatter _reshape_copy _unsafe_view unsafe_split unsafe_split_with_sizes
    _cudnn_rnn_flatten_weight _pack_padded_sequence _pad_packed_sequence _add_batch_dim _remove_batch_dim
"""
RANDOM = """
    bernoulli binomial cauchy exponential geometric log_normal multinomial normal normal_functional poisson
    rand_like randint_like randn_like random uniform _fill_mem_eff_dropout_mask _philox_key_fold_in
    _philox_key_split _philox_normal _philox_uniform _sample_dirichlet _standard_gamma _sobol_engine_ff
    _sobol_engine_initialize_state _sobol_engine_scramble
"""
FACTORIES = """
    empty_like full_like ones_like zeros_like new_empty new_empty_strided new_full new_ones new_zeros linspace
    logspace empty_quantized _new_zeros_with_same_feature_meta
"""
SPARSE_AND_NESTED_LAYOUTS = """
    _coalesce _coalesced _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo sparse_compressed_tensor
    sparse_coo_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor sparse_bsc_tensor
    _sparse_compressed_tensor_unsafe _sparse_coo_tensor_unsafe _sparse_csr_tensor_unsafe _sparse_csc_tensor_unsafe
    _sparse_bsr_tensor_unsafe _sparse_bsc_tensor_unsafe _sparse_coo_tensor_with_dims_and_tensors sparse_mask
    _sparse_mask_projection sparse_resize sparse_resize_and_clear resize_as_sparse _spdiags to_sparse to_sparse_bsc
    to_sparse_bsr to_sparse_csc to_sparse_csr _to_dense _to_sparse _to_sparse_bsc _to_sparse_bsr _to_sparse_csc
    _to_sparse_csr _nested_compute_contiguous_strides_offsets _nested_from_padded
    _nested_from_padded_and_nested_example _nested_from_padded_tensor _nested_get_jagged_dummy _nested_get_lengths
    _nested_get_max_seqlen _nested_get_min_seqlen _nested_get_offsets _nested_select_backward
    _nested_tensor_from_mask _nested_tensor_from_tensor_list _nested_tensor_size _nested_tensor_storage_offsets
    _nested_tensor_strides nested_to_padded_tensor to_padded_tensor _jagged_to_padded_dense_forward
    _padded_dense_to_jagged_forward
"""
QUANTISATION = """
    dequantize fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine_cachemask
    _fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_tensor_affine
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fused_moving_avg_obs_fq_helper
    _fused_moving_avg_obs_fq_helper_functional int_repr q_per_channel_scales q_per_channel_zero_points
    quantize_per_channel quantize_per_tensor quantize_per_tensor_dynamic _make_per_channel_quantized_tensor
    _make_per_tensor_quantized_tensor _convert_weight_to_int4pack _convert_weight_to_int4pack_for_cpu
    _dyn_quant_pack_4bit_weight wrapped_fbgemm_pack_gemm_matrix_fp16
"""
QUANTIZED_NAMESPACES = """
    add_out add_relu add_relu_out add_scalar add_scalar_out add_scalar_relu add_scalar_relu_out batch_norm1d
    batch_norm1d_relu batch_norm2d batch_norm2d_relu batch_norm3d batch_norm3d_relu batch_norm_relu cat_out cat_relu
    cat_relu_out embedding_4bit embedding_bag_2bit_rowwise_offsets embedding_bag_4bit
    embedding_bag_4bit_rowwise_offsets embedding_bag_byte embedding_bag_byte_rowwise_offsets embedding_byte mul_out
    mul_relu mul_relu_out mul_scalar mul_scalar_out mul_scalar_relu mul_scalar_relu_out choose_qparams
    choose_qparams_symmetric dequantize_per_channel dequantize_per_tensor fake_quant_per_channel
"""

BITSANDBYTES = """
    dequantize_4bit dequantize_blockwise quantize_4bit quantize_blockwise int8_vectorwise_quant int8_vectorwise_dequant
    int8_double_quant int8_mm_dequant
"""

_GROUPS = (
    *(ELEMENTWISE, SOFTMAX, REDUCTIONS, NORMALISATION, POOLING, RESAMPLING, CHECKS, LOSSES, SORTING_AND_SEARCHING),
    *(INDEXING, MOVEMENT, RANDOM, FACTORIES, SPARSE_AND_NESTED_LAYOUTS, QUANTISATION, QUANTIZED_NAMESPACES),
    BITSANDBYTES,
)
_NAMES = frozenset(" ".join(_GROUPS).split())
_NAMESPACES = frozenset({"aten", "prim", "prims", "quantized", "_quantized", "quantized_decomposed", "bitsandbytes"})
_FREE_NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "fsdp", "profiler"})
"""Communication between processes, and profiler annotations."""

_VARIANT = re.compile(r"(?:_foreach_)?(?P<base>.+?)(?:_backward|_copy)?_?")
"""Foreach, gradient, copying and in-place forms cost a product only if their base form does."""

_PACKING = re.compile(r"_(pre|un)pack(_|$)")


def is_free(func: OpOverload) -> bool:
    """Whether an operator is known to have no multiply-adds by convention.

    >>> is_free(torch.ops.aten.softplus_backward.default), is_free(torch.ops.aten._fft_r2c.default)
    (True, False)
    """
    namespace, _, name = func._schema.name.partition("::")
    if torch.Tag.pointwise in func.tags or namespace in _FREE_NAMESPACES:
        return True
    if namespace not in _NAMESPACES:
        return False
    schema = func._schema
    is_written = any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments)
    returns_none = not any("Tensor" in str(value.type) for value in schema.returns)
    if func.is_view or (returns_none and not is_written):  # As a query or an assertion.
        return True
    computed_with = [str(argument.type) for argument in schema.arguments if not argument.kwarg_only]
    if not any(word in kind for kind in computed_with for word in ("Tensor", "__torch__", "Any")):
        return True  # It only creates.
    # The name is listed above, is a special function or packs a weight, or its base form is free, perhaps by its own
    # tag or schema, as ``add`` is for ``_foreach_add_``.
    if name in _NAMES or name.startswith("special_") or _PACKING.search(name):
        return True
    match = _VARIANT.fullmatch(name)
    base = match["base"] if match else name
    packet = getattr(torch.ops.aten, base, None)
    overloads = [getattr(packet, overload) for overload in packet.overloads()] if packet else []
    return base in _NAMES or any(torch.Tag.pointwise in o.tags or o.is_view for o in overloads)
